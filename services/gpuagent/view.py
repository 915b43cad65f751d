"""What the agent tells of its node, as messages."""

from __future__ import annotations

from dataclasses import dataclass

from cinquefoil.gpuagent.v1 import inventory_pb2 as pb
from services.gpuagent import convert
from services.gpuagent.accounts import Accounts
from services.gpuagent.inventory import Inventory


@dataclass(frozen=True, slots=True)
class View:
    """The node and its energy. Attributes: inventory, accounts."""

    inventory: Inventory
    accounts: Accounts

    async def node(self) -> pb.Node:
        """Return the node as it is now.

        Raises:
            Unavailable: The driver cannot answer now.
        """
        return convert.node(await self.inventory.read())

    def energy(self) -> list[pb.GpuEnergy]:
        """Return every GPU's account as last read, in order of index."""
        return convert.energy(self.accounts.list())

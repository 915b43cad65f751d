"""Report of a node, as messages."""

from dataclasses import dataclass

from cinquefoil.gpuagent.v1 import inventory_pb2 as pb
from cinquefoil.gpuagent.v1.records import Software
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.node_conditions import NodeConditions
from services.gpuagent.planner_link import convert
from services.gpuagent.profile_drift.drift_watch import DriftWatch
from services.gpuagent.reconfigure.reservations import Reservations
from services.gpuagent.supervision.managed_node import ManagedNode


@dataclass(slots=True)
class NodeReport:
    """The node and its energy.

    Attributes:
        managed, accounts, reservations, versions, watch: What is reported.
        conditions: What is wrong with the node.
        config_digest: Digest of the deployment file; "": it was not read from one.
        address: "host:port" where others reach the agent.
    """

    managed: ManagedNode
    accounts: NodeAccounts
    reservations: Reservations
    versions: Software
    watch: DriftWatch
    conditions: NodeConditions
    config_digest: str = ""
    address: str = ""

    async def node(self) -> pb.Node:
        """Return the node as it is now.

        Raises:
            Unavailable: The driver cannot answer now.
        """
        return convert.node(await self.managed.read(), self.conditions.found)

    async def offered(self) -> pb.Node:
        """Return what the planner may plan with: the node without GPUs that are reserved.

        Raises:
            Unavailable: The driver cannot answer now.
        """
        left = self.reservations.left(await self.managed.read())
        node = convert.node(left, self.conditions.found)
        for gpu in node.gpus:
            gpu.wanted = self.reservations.leaving or gpu.uuid in self.reservations.wanted
        return node

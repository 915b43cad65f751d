"""The node that an agent manages, and its present state."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.gpuagent.core.model import Node
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.supervision.segments import Segments
from services.kit.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedNode:
    """State shared by all that changes or watches the node.

    Attributes:
        name: Node name of the deployment file.
        zone: Electricity zone.
        simulated: Its GPUs are simulated.
        device: The GPUs.
        segments: The segments on them.
        clocks: Holds their clocks.
        clock: Time.
        changed: Called when the node's report has changed.
        tasks: Owns what outlives the call that began it.
        pue: Returns the measured PUE, or None.
    """

    name: str
    zone: str
    simulated: bool
    device: DeviceThread
    segments: Segments
    clocks: ClockLocks
    clock: Clock
    changed: Callable[[], None]
    tasks: asyncio.TaskGroup
    pue: Callable[[], float | None] = lambda: None

    async def read(self) -> Node:
        """Return the node, its GPUs read back from the hardware.

        Raises:
            Unavailable: The driver cannot answer now.
        """
        gpus = await self.device.call(lambda d: d.list())
        segments, clocks = self.segments.list(), self.clocks.state
        return Node(self.name, self.zone, self.simulated, gpus, segments, clocks, self.pue())

    async def every(self, period_s: float, look: Callable[[], Awaitable[None] | None]) -> None:
        """Look now, and again `period_s` after each look, until cancelled."""
        while True:
            looking = look()
            if looking is not None:
                await looking
            await self.clock.sleep(period_s)

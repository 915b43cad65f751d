"""The node as it is now."""

from collections.abc import Callable
from dataclasses import dataclass

from services.gpuagent.core.model import Node
from services.gpuagent.devices.clock_locks import ClockLocks
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.supervision.segments import Segments


@dataclass(frozen=True, slots=True)
class Inventory:
    """Reads the node.

    Attributes:
        name: Node name of the deployment file.
        zone: Electricity zone.
        simulated: Its GPUs are simulated.
        device: The GPUs.
        segments: What runs on them.
        clocks: What holds their clocks.
        pue: Returns the measured PUE, or None.
    """

    name: str
    zone: str
    simulated: bool
    device: DeviceThread
    segments: Segments
    clocks: ClockLocks
    pue: Callable[[], float | None] = lambda: None

    async def read(self) -> Node:
        """Return the node, its GPUs read back from the hardware.

        Raises:
            Unavailable: The driver cannot answer now.
        """
        gpus = await self.device.call(lambda d: d.list())
        segments, clocks = self.segments.list(), self.clocks.state
        return Node(self.name, self.zone, self.simulated, gpus, segments, clocks, self.pue())

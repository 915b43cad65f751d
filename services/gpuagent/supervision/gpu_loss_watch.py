"""GPUs that fall off the bus, and GPUs that come back.

A lost GPU (NVML_ERROR_GPU_IS_LOST, Xid 79) takes every process on it along. Its segments are ended
here too, so that nothing is promised that cannot be kept; the node is reported without the GPU,
and the planner moves the load. After a reset it is reported with the GPU again, without slices.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Final

from cinquefoil.gpuagent.v1.records import LockClock
from services.gpuagent.supervision.managed_node import ManagedNode
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("gpu_loss_watch")

REOPEN_S: Final = 10.0
"""Interval of NVML's restarts while a GPU is lost; other calls wait meanwhile."""


@dataclass(slots=True)
class GpuLossWatch:
    """Watches for GPUs that are lost or come back.

    Attributes:
        node: Whose GPUs they are.
        known: GPUs that were there at the start.
    """

    PERIOD_S: ClassVar = 1.0

    node: ManagedNode
    known: frozenset[str]
    _there: frozenset[str] = field(init=False)
    _reopened_s: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self._there = self.known

    async def look(self) -> None:
        """Look once, and act on changes."""
        try:
            await self._reopen()
            there = await self.node.device.call(lambda d: d.present()) & self.known
        except ServiceError as error:
            _log.warning("cannot look for the GPUs", error=error.message)
            return
        lost, back = self._there - there, there - self._there
        self._there = there
        for uuid in sorted(lost):
            _log.error("GPU is lost; ending its segments", gpu=uuid)
            await self.node.segments.stop_each(self.node.segments.on(uuid), 0.0)
        for uuid in sorted(back):
            _log.info("GPU is back", gpu=uuid)
            await self._hold_clock_again(uuid)
        if lost or back:
            self.node.changed()

    async def _reopen(self) -> None:
        now_s = self.node.clock.monotonic()
        if self._there != self.known and now_s >= self._reopened_s + REOPEN_S:
            self._reopened_s = now_s
            await self.node.device.call(lambda d: d.reopen())

    async def _hold_clock_again(self, gpu_uuid: str) -> None:
        """Hold the clock that a plan wants held: the reset let go of it."""
        clock_mhz = self.node.clocks.state.held_mhz.get(gpu_uuid)
        if clock_mhz is None:
            return
        try:
            await self.node.clocks.hold(LockClock(gpu_uuid, clock_mhz))
        except ServiceError as error:
            _log.warning("cannot hold its clock again", gpu=gpu_uuid, error=error.message)

"""A segment that runs: its workers' keepers, and how others see it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.gpuagent.core.model import Segment, SegmentSpec, SegmentState
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.supervision.worker_supervisor import WorkerSupervisor


@dataclass(slots=True, eq=False)
class RunningSegment:
    """A segment with its keepers."""

    blueprint: WorkerConfig
    keepers: tuple[WorkerSupervisor, ...]
    tasks: tuple[asyncio.Task[None], ...]
    draining: bool = False

    @property
    def spec(self) -> SegmentSpec:
        """What was asked for."""
        return self.blueprint.spec

    def view(self) -> Segment:
        """Return it as others see it."""
        return Segment(
            self.spec,
            self._state(),
            tuple(keeper.spec.listen for keeper in self.keepers),
            sum(keeper.restarts for keeper in self.keepers),
            next(filter(None, (keeper.trouble for keeper in self.keepers)), ""),
        )

    def _state(self) -> SegmentState:
        if self.draining:
            return SegmentState.DRAINING
        if all(keeper.ready for keeper in self.keepers):
            return SegmentState.READY
        if all(keeper.quarantined for keeper in self.keepers):
            return SegmentState.QUARANTINED
        if all(keeper.was_ready or keeper.quarantined for keeper in self.keepers):
            return SegmentState.DEGRADED
        return SegmentState.STARTING

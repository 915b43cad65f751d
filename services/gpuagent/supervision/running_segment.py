"""A segment that runs: its workers' supervisors, and its state as reported."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.gpuagent.core.model import Segment
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.supervision.worker_supervisor import WorkerSupervisor
from services.kit.segment import SegmentSpec, SegmentState


@dataclass(slots=True, eq=False)
class RunningSegment:
    """A segment with its workers' supervisors."""

    config: WorkerConfig
    supervisors: tuple[WorkerSupervisor, ...]
    tasks: tuple[asyncio.Task[None], ...]
    draining: bool = False

    @property
    def spec(self) -> SegmentSpec:
        """What was requested."""
        return self.config.spec

    def reported(self) -> Segment:
        """Return the segment as reported."""
        return Segment(
            self.spec,
            self._state(),
            tuple(supervisor.spec.listen for supervisor in self.supervisors),
            sum(supervisor.restarts for supervisor in self.supervisors),
            next(filter(None, (supervisor.trouble for supervisor in self.supervisors)), ""),
        )

    def _state(self) -> SegmentState:
        if self.draining:
            return SegmentState.DRAINING
        if all(supervisor.ready for supervisor in self.supervisors):
            return SegmentState.READY
        if all(supervisor.quarantined for supervisor in self.supervisors):
            return SegmentState.QUARANTINED
        if all(supervisor.was_ready or supervisor.quarantined for supervisor in self.supervisors):
            return SegmentState.DEGRADED
        return SegmentState.STARTING

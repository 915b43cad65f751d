"""A GPU on paper, whose energy is accounted for."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.gpuagent.v1.worker_pb2 import Hello
from services.gpuagent.core.device_port import MeterReading
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.energy.core.attribution import IdleShare
from services.gpuagent.energy.metering import GpuMeter, MeteredGpu
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.supervision.segments import RunningSegment
from services.gpuagent.supervision.worker_supervisor import SupervisionContext, WorkerSupervisor
from services.kit.clock import RealClock
from services.kit.profiles.core.profile import BatchCost

IDLE_W = 50.0
POWER_W = 70.0
"""Power that the meter shows."""


async def _never(endpoint: str, segment_id: str) -> Hello:
    raise AssertionError(f"{endpoint}, {segment_id}: nothing is started here")


def _running(
    name: str, slots: tuple[int, ...], counters: SharedCounters, *, sm_count: int = 42
) -> RunningSegment:
    """A segment on paper: any process that writes the slots is its workers."""
    spec = SegmentSpec(name, "m", "v", 4, len(slots), "GPU-1", Placement("3g.20gb", 0))
    worker = WorkerSpec(
        segment_id=name,
        model="m",
        variant="v",
        file=Path("v.onnx"),
        batch_size=4,
        slice_uuid="MIG-1",
        costs=None,
        ledger=counters.path,
        siblings=slots,
    )
    config = WorkerConfig(spec, worker, {}, 5.0, sm_count)
    world = SupervisionContext(RealClock(), _never, lambda: None)
    supervisors = tuple(
        WorkerSupervisor(
            worker.model_copy(update={"slot": slot}),
            counters.path,
            counters,
            {},
            world,
        )
        for slot in slots
    )
    return RunningSegment(config, supervisors, ())


@dataclass
class Bench:
    """A GPU on paper: the test writes slots and reads the meter."""

    folder: Path
    sm_shares: bool = False
    idle_share: IdleShare = "none"
    limit_w: float = math.inf
    segments: dict[str, RunningSegment] = field(default_factory=dict)
    at_s: float = 1000.0
    joules: float = 0.0
    reset_j: float = 0.0
    context_w: float = IDLE_W

    def __post_init__(self) -> None:
        self.counters = SharedCounters(self.folder / "ledger", lambda: self.at_s)
        self.start_agent()

    def start_agent(self) -> None:
        self.meter = GpuMeter(
            self.folder / "energy.json",
            self.counters,
            MeteredGpu(
                IDLE_W,
                self.context_w,
                98,
                simulated=not self.sm_shares,
                idle_share=self.idle_share,
                limit_w=self.limit_w,
            ),
        )

    def segment(self, name: str, *slots: int, sm_count: int = 42) -> None:
        self.segments[name] = _running(name, slots, self.counters, sm_count=sm_count)
        for slot in slots:
            self.counters.write(slot, Slot(pid=1, slice_uuid="MIG-1", segment_id=name))

    def end(self, name: str) -> None:
        """End a segment; what its workers did since the last reading stays in their slots."""
        for supervisor in self.segments.pop(name).supervisors:
            self.counters.settle(supervisor.spec.slot)

    def batch(
        self, slot: int, busy_s: float, energy_j: float, profiled: BatchCost | None = None
    ) -> None:
        """Record that a worker has run a batch."""
        now = self.counters.slot(slot)
        begun = replace(now, busy_since_s=self.at_s - busy_s)
        self.counters.write(slot, begun.ended(self.at_s, energy_j, 1, profiled))

    def pass_time(self, elapsed_s: float, active_j: float) -> None:
        self.at_s += elapsed_s
        self.joules += IDLE_W * elapsed_s + active_j

    def read(self, elapsed_s: float, active_j: float, method: Any = "model") -> None:
        self.pass_time(elapsed_s, active_j)
        reading = MeterReading(self.joules - self.reset_j, POWER_W, method)
        self.meter.read(reading, self.at_s, self.segments.values())

    def reset(self) -> None:
        """Restart the counter, if the restart could be seen in its values."""
        if self.joules - self.reset_j > 1000.0:
            self.reset_j = self.joules

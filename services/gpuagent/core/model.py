"""The agent's words: what is asked of a node, and what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from services.gpuagent.core.gpu_info import GpuInfo
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.mig import Placement

_SEGMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True, slots=True)
class MpsLimit:
    """What one process may take of its slice.

    Attributes:
        thread_percentage: Of the slice's SMs, 1..100.
        memory_bytes: Device memory, bytes; 0: no bound.
    """

    thread_percentage: int
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.thread_percentage <= 100:
            raise InvalidArgument(
                f"spec.limits.thread_percentage: must be 1..100, got {self.thread_percentage}",
                field="spec.limits.thread_percentage",
            )


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """A variant with its batch size and processes, to run on one slice.

    Attributes:
        segment_id: Unique over the deployment and over time.
        model, variant: Of the deployment file.
        batch_size: Largest batch, items, >= 1.
        processes: Worker processes on the slice, >= 1.
        gpu_uuid: The GPU.
        placement: Its slice.
        limits: What each process may take of the slice; empty: equal shares.
        stage: Which part of the variant, where that is a pipeline.
    """

    segment_id: str
    model: str
    variant: str
    batch_size: int
    processes: int
    gpu_uuid: str
    placement: Placement
    limits: tuple[MpsLimit, ...] = ()
    stage: int = 0

    def __post_init__(self) -> None:
        if not _SEGMENT_ID.fullmatch(self.segment_id):  # it names files
            raise InvalidArgument(
                f"spec.segment_id: letters, digits, '.', '_' and '-', at most 120, got "
                f"{self.segment_id!r}",
                field="spec.segment_id",
            )
        for name in ("model", "variant", "gpu_uuid"):
            if not getattr(self, name):
                raise InvalidArgument(f"spec.{name}: required", field=f"spec.{name}")
        for name in ("batch_size", "processes"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"spec.{name}: must be >= 1", field=f"spec.{name}")
        if len(self.limits) not in (0, self.processes):
            raise InvalidArgument(
                f"spec.limits: one per process, {self.processes}, or none; got {len(self.limits)}",
                field="spec.limits",
            )


class SegmentState(Enum):
    """Where a segment stands in its life."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that runs.

    Attributes:
        spec: What was asked for.
        state: What is.
        endpoints: "host:port", one per process.
        restarts: Of its workers, so far.
        reason: Why a worker is down or was given up; "": none is.
    """

    spec: SegmentSpec
    state: SegmentState
    endpoints: tuple[str, ...]
    restarts: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClockState:
    """Attributes: may_lock (the agent may hold clocks), held_mhz (what it holds, by GPU)."""

    may_lock: bool = False
    held_mhz: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """What a node has, read back from the hardware, and its PUE where that is measured."""

    name: str
    zone: str
    simulated: bool
    gpus: tuple[GpuInfo, ...]
    segments: tuple[Segment, ...]
    clocks: ClockState
    pue: float | None = None


@dataclass(frozen=True, slots=True)
class CreateSlice:
    """Create a slice at an explicit placement."""

    gpu_uuid: str
    placement: Placement

    def __str__(self) -> str:
        return f"create {self.placement} on {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class DestroySlice:
    """Destroy a slice on which nothing runs."""

    gpu_uuid: str
    placement: Placement

    def __str__(self) -> str:
        return f"destroy {self.placement} on {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class StartSegment:
    """Start a segment's workers on an existing slice and wait until they answer."""

    spec: SegmentSpec

    def __str__(self) -> str:
        spec = self.spec
        return f"start {spec.segment_id} on {spec.placement} of {spec.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class StopSegment:
    """Drain a segment's workers and stop them; accepted requests may take `grace_s`."""

    segment_id: str
    grace_s: float

    def __str__(self) -> str:
        return f"stop {self.segment_id}"


@dataclass(frozen=True, slots=True)
class LockClock:
    """Hold a GPU's SM clock at `clock_mhz`, or as near as the driver can; 0: give it back."""

    gpu_uuid: str
    clock_mhz: int

    def __str__(self) -> str:
        clock = f"hold {self.clock_mhz} MHz" if self.clock_mhz else "give the clock back"
        return f"{clock} on {self.gpu_uuid}"


@dataclass(frozen=True, slots=True)
class SetMigMode:
    """Switch MIG mode of an idle GPU on or off."""

    gpu_uuid: str
    enabled: bool

    def __str__(self) -> str:
        return f"switch {'on' if self.enabled else 'off'} MIG mode of {self.gpu_uuid}"


Action = CreateSlice | DestroySlice | LockClock | SetMigMode | StartSegment | StopSegment


@dataclass(frozen=True, slots=True)
class Transaction:
    """Actions that are carried out as one: all of them, or none.

    Attributes:
        groups: In order; the actions of one group run at the same time.
    """

    groups: tuple[tuple[Action, ...], ...] = ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """Every action, in order."""
        return tuple(action for group in self.groups for action in group)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a step.

    Attributes:
        error: None: the node is as the step asked, read back.
        elapsed_s: Wall-clock time taken, s.
        not_restored: After an error, what could not be brought back to how it was before.
    """

    error: ServiceError | None
    elapsed_s: float
    not_restored: tuple[str, ...] = ()

"""The agent's values: what a node is, and the actions that change it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DestroySlice,
    LockClock,
    SegmentSpec,
    SegmentState,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.gpu_info import GpuInfo
from services.kit.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that runs.

    Attributes:
        spec: What was requested.
        state: What is.
        endpoints: "host:port", one per process.
        restarts: Of its workers, so far.
        reason: Why a worker is down or was given up; "": none is.
        execution_provider: ONNX Runtime's, as its session says; "": not known, or another runtime.
        max_batch: Requests that its file takes at a time; 0: any number, or not known.
        alone_reason: Why that is one; "": it is not.
    """

    spec: SegmentSpec
    state: SegmentState
    endpoints: tuple[str, ...]
    restarts: int
    reason: str = ""
    execution_provider: str = ""
    max_batch: int = 0
    alone_reason: str = ""


@dataclass(frozen=True, slots=True)
class ClockState:
    """Attributes: may_lock (the agent may hold clocks), held_mhz (what it holds, by GPU)."""

    may_lock: bool = False
    held_mhz: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """State of a node, read back from the hardware, and its PUE where that is measured."""

    name: str
    zone: str
    simulated: bool
    gpus: tuple[GpuInfo, ...]
    segments: tuple[Segment, ...]
    clocks: ClockState
    pue: float | None = None


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
    """Outcome of a step.

    Attributes:
        error: None: the node is as the step requested, read back.
        elapsed_s: Wall-clock time taken, s.
        not_restored: After an error: changes that could not be undone.
    """

    error: ServiceError | None
    elapsed_s: float
    not_restored: tuple[str, ...] = ()

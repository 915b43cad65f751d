"""Segments as the planner requests and the agent reports them."""

import re
from dataclasses import dataclass
from enum import IntEnum

from services.kit.errors import InvalidArgument
from services.kit.mig import Placement

_SEGMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


class SegmentState(IntEnum):
    """Life cycle of a segment; values are the wire's."""

    STARTING = 1
    READY = 2
    DEGRADED = 3
    DRAINING = 4
    QUARANTINED = 5


@dataclass(frozen=True, slots=True)
class MpsLimit:
    """Limits of one process on its slice.

    Attributes:
        thread_percentage: Share of the slice's SMs, 1..100.
        memory_bytes: Device memory, bytes; 0: unlimited.
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
        segment_id: Unique over the deployment's lifetime.
        model, variant: Names from the deployment file.
        batch_size: Largest batch, items, >= 1.
        processes: Worker processes on the slice, >= 1.
        gpu_uuid: The GPU.
        placement: The slice on it.
        limits: Limits of each process on the slice; empty: equal shares.
        stage: Stage of the variant; 0 without a pipeline.
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
        if not _SEGMENT_ID.fullmatch(self.segment_id):  # files are named after it
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

"""Segments and slices as the planner requests and the agent reports them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from services.kit.errors import InvalidArgument
from services.kit.mig import Placement

_SEGMENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_LONGEST_NAME: Final = 128
_LONGEST_TEXT: Final = 1000

MOST_BATCH: Final = 1024
"""Largest batch of a segment, items."""

MOST_PROCESSES: Final = 64
"""Most worker processes of a segment; MPS has 48 clients a GPU, 60 on the newest."""

_LIMITS: Final = {"batch_size": (1, MOST_BATCH), "processes": (1, MOST_PROCESSES), "stage": (0, 63)}


class SegmentState(IntEnum):
    """Life cycle of a segment; values are the wire's."""

    STARTING = 1
    READY = 2
    DEGRADED = 3
    DRAINING = 4
    QUARANTINED = 5


def plain(text: str) -> str:
    """Return what a peer says for a person: one line, at most 1,000 characters."""
    return "".join(each if each.isprintable() else " " for each in text[:_LONGEST_TEXT])


def some_of(names: Iterable[str], most: int = 20) -> str:
    """Return the first of some names in order for a message, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more or "none"


def check_name(field: str, name: str) -> None:
    """Check a name that a peer sent: it is shown, logged and stored.

    Raises:
        InvalidArgument: It is empty, longer than 128 characters, or not printable.
    """
    if not name:
        raise InvalidArgument.at(field, "required")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidArgument.at(
            field, f"must have 1..{_LONGEST_NAME} printable characters, got {name[:32]!r}"
        )


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
            raise InvalidArgument.at(
                "spec.limits.thread_percentage", f"must be 1..100, got {self.thread_percentage}"
            )


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """A variant with its batch size and processes, to run on one slice.

    Attributes:
        segment_id: Unique over the deployment's lifetime.
        model, variant: Names from the deployment file.
        batch_size: Largest batch, items, 1..MOST_BATCH.
        processes: Worker processes on the slice, 1..MOST_PROCESSES.
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
            raise InvalidArgument.at(
                "spec.segment_id",
                f"letters, digits, '.', '_' and '-', at most 120, got {self.segment_id!r}",
            )
        for name in ("model", "variant", "gpu_uuid"):
            check_name(f"spec.{name}", getattr(self, name))
        for name, (least, most) in _LIMITS.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise InvalidArgument.at(f"spec.{name}", f"must be {least}..{most}, got {value}")
        if len(self.limits) not in (0, self.processes):
            raise InvalidArgument.at(
                "spec.limits", f"one per process, {self.processes}, or none; got {len(self.limits)}"
            )


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
class LockClock:
    """Hold a GPU's SM clock at `clock_mhz`, or as near as the driver can; 0: give it back."""

    gpu_uuid: str
    clock_mhz: int

    def __str__(self) -> str:
        clock = f"hold {self.clock_mhz} MHz" if self.clock_mhz else "give the clock back"
        return f"{clock} on {self.gpu_uuid}"

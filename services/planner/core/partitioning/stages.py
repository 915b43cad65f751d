"""Grouping of neighbouring units into stages: exact, by dynamic programming.

The role of AlpaServe (OSDI'23) in mu-Serve: its inter-operator pass, with clusters as units. The
sum of the stages' times is the same for all cuts: "latency" means the least transfer between them,
and among equals the shortest longest stage; "throughput" means the shortest longest stage, and
among equals the least transfer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Generic, TypeVar

from services.kit.errors import FailedPrecondition
from services.kit.units import BYTES_PER_MIB
from services.planner.core.partitioning.model import StageObjective

Key = TypeVar("Key")


@dataclass(frozen=True)
class Units:
    """Units of stages, in order.

    Attributes:
        latencies_s: Time of each unit, s.
        transfers_bytes: Size of the tensors from each unit to the next, bytes; one fewer.
        memory_bytes: Returns the memory of a stage of units [i, j), bytes.
        max_memory_bytes: Largest memory of a stage, bytes; None: no limit.
    """

    latencies_s: Sequence[float]
    transfers_bytes: Sequence[int]
    memory_bytes: Callable[[int, int], int]
    max_memory_bytes: int | None = None

    @cached_property
    def _before_s(self) -> list[float]:
        return list(accumulate(self.latencies_s, initial=0.0))

    def latency_s(self, start: int, stop: int) -> float:
        """Return the time of a stage, s."""
        return self._before_s[stop] - self._before_s[start]

    def received_bytes(self, start: int) -> int:
        """Return the size of a stage's inputs from the stage before, bytes."""
        return self.transfers_bytes[start - 1] if start else 0

    def fit(self, start: int, stop: int) -> bool:
        """Return whether a stage fits its device."""
        return (
            self.max_memory_bytes is None or self.memory_bytes(start, stop) <= self.max_memory_bytes
        )


def choose(units: Units, count: int, objective: StageObjective) -> tuple[int, ...]:
    """Return the first unit of each stage, starting with 0.

    Args:
        units: Units of the stages.
        count: Number of stages, 1 .. units.
        objective: "latency" or "throughput".

    Raises:
        FailedPrecondition: There are fewer units, or no cut keeps every stage within its memory.
    """
    if not 1 <= count <= len(units.latencies_s):
        raise FailedPrecondition(
            f"{count} stages cannot be made of {len(units.latencies_s)} units", field="stages"
        )
    longest_s = math.inf
    if objective == "throughput":
        longest_s = _least(units, count, Units.latency_s, max, math.inf).key
    return _least(units, count, _moved_then_longest, _sum_then_max, longest_s).starts


@dataclass(frozen=True, slots=True, order=True)
class _Found(Generic[Key]):
    key: Key
    starts: tuple[int, ...]


def _least(
    units: Units,
    count: int,
    key: Callable[[Units, int, int], Key],
    join: Callable[[Key, Key], Key],
    longest_s: float,
) -> _Found[Key]:
    """Return the stages of the least key, by Bellman's recursion over the last stage's start.

    `best` maps each end to the least key with a given number of stages. Both keys allow it: an
    optimal whole has an optimal beginning, as `join` grows with either argument.
    """
    end = len(units.latencies_s)

    def stage(start: int, stop: int) -> Key | None:
        fits = units.latency_s(start, stop) <= longest_s and units.fit(start, stop)
        return key(units, start, stop) if fits else None

    firsts = ((stop, stage(0, stop)) for stop in range(1, end + 1))
    best: dict[int, _Found[Key]] = {
        stop: _Found(own, (0,)) for stop, own in firsts if own is not None
    }
    for _ in range(1, count):
        before = best
        best = {}
        for stop in range(2, end + 1):
            options: list[_Found[Key]] = []
            for start, reached in before.items():
                own = stage(start, stop) if start < stop else None
                if own is not None:
                    options.append(_Found(join(reached.key, own), (*reached.starts, start)))
            if options:
                best[stop] = min(options)
    if end not in best:
        most_mib = (units.max_memory_bytes or 0) / BYTES_PER_MIB  # without a bound there are stages
        raise FailedPrecondition(
            f"no {count} stages keep within {most_mib:g} MiB each",
            field="memory",
        )
    return best[end]


def _moved_then_longest(units: Units, start: int, stop: int) -> tuple[int, float]:
    return units.received_bytes(start), units.latency_s(start, stop)


def _sum_then_max(one: tuple[int, float], other: tuple[int, float]) -> tuple[int, float]:
    return one[0] + other[0], max(one[1], other[1])

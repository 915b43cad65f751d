"""Choice of the points to measure, without those that earlier results make pointless. Pure.

Points are measured from small to large, one dimension inside the other: slices, processes, batch
sizes, clocks from the highest down. A point is left out when

- a smaller one did not run: the same slice with no more processes and no larger batches, for a
  larger one takes more memory;
- it is far too slow: a point that is no slower (no larger batch, no more processes, no lower
  clock) took more than `Limits.too_slow_s`;
- its batch size is dominated: from the last batch size to the one before, neither throughput nor
  energy per item gained `Limits.least_gain` at the highest clock; larger ones gain less still.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise, product
from typing import Final

from services.kit.errors import InvalidArgument
from services.kit.profiles.core.measurement import Measurement

LEAST_GAIN: Final = 0.02
MAX_PROCESSES: Final = 48
"""Clients that an MPS daemon takes (Volta and newer)."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One point of a profile.

    Attributes:
        profile: Slice kind.
        batch_size: Items per batch.
        processes: Processes at the same time.
        clock_mhz: SM clock to hold, MHz; 0: none.
        prompt_tokens: Of a language model's prompts; 0: it is none.
    """

    profile: str
    processes: int
    batch_size: int
    clock_mhz: int = 0
    prompt_tokens: int = 0

    @classmethod
    def of(cls, measured: Measurement) -> Point:
        """Return the point of a measurement."""
        return cls(*(getattr(measured, each.name) for each in fields(cls)))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds beyond which points are left out.

    Attributes:
        too_slow_s: Latency from which on slower points are left out, s.
        least_gain: Relative gain in throughput or energy per item that a larger batch must bring.
    """

    too_slow_s: float = math.inf
    least_gain: float = LEAST_GAIN


@dataclass(frozen=True, slots=True)
class Grid:
    """Every point that could be measured.

    Attributes:
        profiles: Slice kinds.
        batch_sizes, processes: Ascending.
        clocks_mhz: Descending; the first is always 0, no clock held.
        prompts: Tokens of a language model's prompts, ascending; (0,): it is none.
    """

    profiles: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    processes: tuple[int, ...]
    clocks_mhz: tuple[int, ...] = (0,)
    prompts: tuple[int, ...] = (0,)

    @classmethod
    def of(
        cls,
        profiles: Iterable[str],
        batch_sizes: Iterable[int],
        processes: Iterable[int],
        clocks_mhz: Iterable[int] = (),
    ) -> Grid:
        """Return the grid of these values, in any order.

        Raises:
            InvalidArgument: A dimension is empty, or has a value that cannot be.
        """
        made = cls(
            tuple(dict.fromkeys(profiles)),
            _ascending("batch", batch_sizes, math.inf),
            _ascending("processes", processes, MAX_PROCESSES),
            (0, *sorted({clock for clock in clocks_mhz if clock}, reverse=True)),
        )
        if not made.profiles:
            raise InvalidArgument.at("slices", "at least one is needed")
        return made

    def points(self) -> Iterator[Point]:
        """Yield every point, in the order of measuring."""
        dimensions = (self.profiles, self.processes, self.batch_sizes, self.clocks_mhz)
        return (Point(*values) for values in product(*dimensions, self.prompts))


@dataclass(slots=True)
class Sweep:
    """One variant's points, and what is known of them.

    Attributes:
        grid: All points.
        limits: What makes points pointless.
        measured: By point; points of another grid count as knowledge too.
    """

    grid: Grid
    limits: Limits = field(default_factory=Limits)
    measured: dict[Point, Measurement] = field(default_factory=dict)

    def add(self, measurement: Measurement) -> None:
        """Take in a result."""
        self.measured[Point.of(measurement)] = measurement

    def remaining(self) -> tuple[Point, ...]:
        """Return the points that are still worth measuring, the next one first."""
        return tuple(
            point
            for point in self.grid.points()
            if point not in self.measured and not self.pruned(point)
        )

    def pruned(self, point: Point) -> str:
        """Return the reason why a point need not be measured, or ""."""
        here = [m for m in self.measured.values() if m.profile == point.profile]
        for known in here:
            if not known.ran and _no_larger(known, point):
                return f"batch {known.batch_size} x {known.processes} did not run"
            slow = known.latency_s > self.limits.too_slow_s
            faster = (known.clock_mhz or math.inf) >= (point.clock_mhz or math.inf)
            if slow and faster and _no_larger(known, point):
                return f"batch {known.batch_size} x {known.processes} is too slow already"
        return _dominated(here, point, self.limits.least_gain)


def _ascending(name: str, values: Iterable[int], most: float) -> tuple[int, ...]:
    found = tuple(sorted(set(values)))
    if not found or found[0] < 1 or found[-1] > most:
        raise InvalidArgument.at(
            name, f"one or more numbers in 1..{most:g} are needed, got {list(found)}"
        )
    return found


def _no_larger(known: Measurement, point: Point) -> bool:
    return (
        known.batch_size <= point.batch_size
        and known.processes <= point.processes
        and known.prompt_tokens <= point.prompt_tokens
    )


def _dominated(here: Sequence[Measurement], point: Point, least_gain: float) -> str:
    sizes: Mapping[int, Measurement] = {
        known.batch_size: known
        for known in here
        if (known.processes, known.prompt_tokens) == (point.processes, point.prompt_tokens)
        and known.ran
        and not known.clock_mhz
    }
    smaller = sorted(size for size in sizes if size < point.batch_size)
    for low, high in pairwise(smaller):
        one, other = sizes[low], sizes[high]
        faster = other.throughput_rps > one.throughput_rps * (1 + least_gain)
        leaner = other.energy_j / high < one.energy_j / low * (1 - least_gain)
        if not faster and not leaner:
            return f"batch {high} gains nothing over {low} already"
    return ""

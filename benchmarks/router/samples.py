"""Samples of each path under each load, and their comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


class Case(NamedTuple):
    """One load.

    Attributes:
        size: Of messages.SHAPES.
        in_flight: Requests, at any time.
        most_connections: They share so many connections, or have one each where they are fewer.
    """

    size: str
    in_flight: int
    most_connections: int = 8

    @property
    def connections(self) -> int:
        """Connections that share the requests evenly."""
        return min(self.in_flight, self.most_connections)

    def __str__(self) -> str:
        if self.connections == self.in_flight > 1:
            return f"{self.size}_{self.connections}x1"
        return f"{self.size}_{self.in_flight}"


CASES = (
    Case("small", 1),
    Case("small", 64),
    Case("image", 1),
    Case("image", 64),
    Case("small", 64, 64),
)
"""Many in flight are those of several clients, and at last of as many clients."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One path under one load in one round.

    Attributes:
        rate_rps: Answers per second.
        p50_ms: Latency.
        p99_ms: Latency.
        cpu_us: CPU time of its processes per answer; the backend behind them is not its own.
    """

    rate_rps: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


class Cell(NamedTuple):
    """A path under a load."""

    case: Case
    path: str


@dataclass(frozen=True, slots=True)
class Speeds:
    """All rounds.

    Attributes:
        samples: By load and path, one per round, in order.
        absent: Why a path was not measured.
    """

    samples: Mapping[Cell, list[Sample]]
    absent: Mapping[str, str]

    def figure(self, case: Case, path: str) -> float | None:
        """Return the median of what the load is judged by: ms with one in flight, else req/s."""
        found = self.samples.get(Cell(case, path))
        return median(_figure(case, each) for each in found) if found else None

    def median_of(self, case: Case, path: str, name: str) -> float | None:
        """Return the median of a field of Sample."""
        found = self.samples.get(Cell(case, path))
        return median(getattr(each, name) for each in found) if found else None

    def better(self, case: Case, path: str, than: str) -> float | None:
        """Return how many times better a path is than another: the median over the rounds.

        Both were measured in each round within seconds, so what disturbs a round cancels.
        """
        ours, theirs = (self.samples.get(Cell(case, each)) for each in (path, than))
        if not ours or not theirs:
            return None
        ratios = [
            _figure(case, mine) / _figure(case, other)
            for mine, other in zip(ours, theirs, strict=True)
        ]
        return median(1 / each if case.in_flight == 1 else each for each in ratios)


def _figure(case: Case, sample: Sample) -> float:
    return sample.p50_ms if case.in_flight == 1 else sample.rate_rps

"""Points of history: their lengths, and their sums."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Final, TypeVar

from cinquefoil.planner.v1.records import (
    FleetHistory,
    GpuHistory,
    HistoryPoint,
    ModelHistory,
    SiteHistory,
    ZoneHistory,
)

T = TypeVar("T", FleetHistory, GpuHistory, ModelHistory, SiteHistory, ZoneHistory)

MAX_POINTS: Final = 1500
"""Most points of an answer."""

_LATEST: Final = frozenset(("slo_latency_s", "slo_percentile"))
"""Fields that are not sums: the last known value holds."""


@dataclass(frozen=True, slots=True)
class Level:
    """Points of one length that are kept.

    Attributes:
        step_s: Their length, s.
        count: The most that are kept.
    """

    step_s: int
    count: int

    def reaches(self, since_s: int, now_s: int) -> bool:
        """Return whether all points since a time are kept; Unix times, s."""
        return now_s - since_s <= self.step_s * self.count


LEVELS: Final = (Level(60, 26 * 60), Level(600, 8 * 144), Level(3600, 400 * 24))
MINUTE: Final = LEVELS[0]


def start_of(when_s: float, step_s: int) -> int:
    """Return the start of the stretch that contains a time; Unix times, s."""
    return math.floor(when_s / step_s) * step_s


def since_s(point: HistoryPoint) -> int:
    """Return a point's start, Unix time, s."""
    return round(point.since.timestamp())


def step_for(since_s: int, until_s: int, wanted_s: int, now_s: int) -> tuple[Level, int]:
    """Return the points to read, and the length of those to make of them, s.

    Args:
        since_s: Start, Unix time, s.
        until_s: End, Unix time, s.
        wanted_s: Wanted length, s; 0: the shortest possible.
        now_s: Now, Unix time, s.

    Returns:
        The longest kept points that fit into the wanted length, or the shortest that reach back
        far enough; a multiple of their length, of which the window has at most MAX_POINTS.
    """
    reaching = [level for level in LEVELS if level.reaches(since_s, now_s)] or [LEVELS[-1]]
    least_s = max(reaching[0].step_s, wanted_s, math.ceil((until_s - since_s) / (MAX_POINTS - 1)))
    level = next(level for level in reversed(reaching) if level.step_s <= least_s)
    return level, math.ceil(least_s / level.step_s) * level.step_s


def stretches(points: Iterable[HistoryPoint], step_s: int) -> Iterator[HistoryPoint]:
    """Yield points of a length as sums of shorter ones, which are in order of time."""
    for start_s, of_it in groupby(points, lambda point: start_of(since_s(point), step_s)):
        yield merged(of_it, start_s)


def merged(points: Iterable[HistoryPoint], start_s: int) -> HistoryPoint:
    """Return the sum of points.

    Args:
        points: In order of time.
        start_s: Start of the sum, Unix time, s.
    """
    points = tuple(points)
    return HistoryPoint(
        since=datetime.fromtimestamp(start_s, UTC),
        fleet=_sum([point.fleet for point in points]) if points else FleetHistory(),
        zones=_sums(point.zones for point in points),
        models=_sums(point.models for point in points),
        gpus=_sums(point.gpus for point in points),
        sites=_sums(point.sites for point in points),
    )


def _sums(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    found: dict[str, list[T]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, []).append(value)
    return {name: _sum(found[name]) for name in sorted(found)}


def _sum(values: list[T]) -> T:
    """Return the sum of one or more records, field by field."""
    first, *others = values
    if not others:
        return first
    totals = {}
    for name in [field.name for field in fields(first)]:
        each = [getattr(value, name) for value in values]
        known = [value for value in each if value] or [0.0]
        totals[name] = known[-1] if name in _LATEST else sum(each)
    return replace(first, **totals)

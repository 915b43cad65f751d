"""Sums and histograms of durations: an addition each, so that every request can afford them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of a histogram's buckets, s; one more bucket has none."""


@dataclass(slots=True)
class Durations:
    """Events and the time that they took together. Attributes: count, total_s."""

    count: int = 0
    total_s: float = 0.0

    def add(self, duration_s: float, count: int = 1) -> None:
        """Count `count` events of this duration each."""
        self.count += count
        self.total_s += duration_s * count


class Histogram:
    """Durations in the buckets of `BOUNDS_S`, bounds included.

    Attributes:
        counts: One per bucket, the unbounded one last.
        total_s: Sum of the durations.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one duration, s."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

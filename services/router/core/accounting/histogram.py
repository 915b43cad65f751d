"""Counts of durations by size: an addition each, so that every request can afford them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, log

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of a histogram's buckets, s; one more bucket has none."""

_ACCURACY = 0.01
_GAMMA = (1 + _ACCURACY) / (1 - _ACCURACY)
_PER_LOG = 1 / log(_GAMMA)
_LOWEST_S, _HIGHEST_S = 1e-6, 1e4
_FIRST = log(_LOWEST_S) * _PER_LOG
_SIZE = ceil(log(_HIGHEST_S) * _PER_LOG - _FIRST)
_MIDDLE_S = _LOWEST_S * 2 * _GAMMA / (1 + _GAMMA)


class Histogram:
    """Durations in the buckets of `BOUNDS_S`, bounds included.

    Attributes:
        counts: One per bucket, the unbounded one last.
        total_s: Their sum.
    """

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one duration, s."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s


class Sketch:
    """Durations in buckets that each are 2 % wider than the one below.

    Quantiles are within 1 % between 1 us and 10,000 s; what lies beyond counts as that. Memory is
    fixed, and the sketch of a stretch of time is the difference of two.

    Source: Masson, Rim, Lee, "DDSketch", VLDB 2019, section 2.1, with a fixed range instead of
    buckets that collapse.
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: Sequence[int] = ()) -> None:
        self._counts = list(counts) or [0] * _SIZE

    def add(self, duration_s: float) -> None:
        """Count one duration, s."""
        if _LOWEST_S < duration_s < _HIGHEST_S:
            self._counts[int(log(duration_s) * _PER_LOG - _FIRST)] += 1
        else:
            self._counts[0 if duration_s <= _LOWEST_S else -1] += 1

    def copy(self) -> Sketch:
        """Return what has been counted so far."""
        return Sketch(self._counts)

    def since(self, earlier: Sketch) -> Sketch:
        """Return what was counted after `earlier` was copied off this one."""
        pairs = zip(self._counts, earlier._counts, strict=True)
        return Sketch([now - then for now, then in pairs])

    def quantiles_s(self, percentiles: Iterable[float]) -> dict[float, float]:
        """Return durations by percentile (0..100), s; empty where nothing was counted."""
        ranks = list(accumulate(self._counts))
        if not ranks[-1]:
            return {}
        return {
            percentile: _MIDDLE_S * _GAMMA ** bisect_left(ranks, _rank(percentile, ranks[-1]))
            for percentile in percentiles
        }


def _rank(percentile: float, count: int) -> int:
    """Return which of `count` sorted values is the percentile, 1..count."""
    return int(percentile / 100 * (count - 1)) + 1

"""Quantiles of a stream of positive values in fixed memory.

Source: Masson, Rim, Lee, "DDSketch", VLDB 2019, section 2.1, with a fixed range instead of buckets
that collapse: an addition costs a logarithm and an increment, and the sketch of a stretch of time
is the difference of two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, log


class Buckets:
    """Buckets that each are `growth` times as wide as the one below.

    Args:
        lowest: Where the first bucket begins, > 0; smaller values count in it, too.
        growth: Upper over lower bound of a bucket, > 1. The value that stands for a bucket is
            within (growth - 1) / (growth + 1) of every value in it.
        count: Number of buckets; larger values count in the last one.
    """

    __slots__ = ("_first", "_highest", "_per_log", "count", "growth", "lowest")

    def __init__(self, lowest: float, growth: float, count: int) -> None:
        self.lowest = lowest
        self.growth = growth
        self.count = count
        self._per_log = 1 / log(growth)
        self._first = log(lowest) * self._per_log
        self._highest = self.value(count - 1)  # beyond, rounding could name a bucket too many

    @classmethod
    def spanning(cls, lowest: float, highest: float, growth: float) -> Buckets:
        """Return the buckets from `lowest` to at least `highest`."""
        return cls(lowest, growth, ceil(log(highest / lowest) / log(growth)))

    def index(self, value: float) -> int:
        """Return the bucket of a value, 0 <= index < count."""
        if self.lowest < value < self._highest:
            return int(log(value) * self._per_log - self._first)
        return 0 if value <= self.lowest else self.count - 1

    def value(self, index: int) -> float:
        """Return the value that stands for a bucket."""
        return self.lowest * 2 * self.growth ** (index + 1) / (1 + self.growth)

    def between(self, factor: float) -> float:
        """Return how many buckets lie between a value and `factor` times that value."""
        return log(factor) * self._per_log


class Sketch:
    """Counts of values by bucket.

    Args:
        buckets: The buckets.
        counts: Values counted so far, by bucket; empty: none.
    """

    __slots__ = ("_buckets", "_counts", "_index")

    def __init__(self, buckets: Buckets, counts: Sequence[int] = ()) -> None:
        self._buckets = buckets
        self._index = buckets.index
        self._counts = list(counts) or [0] * buckets.count

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[self._index(value)] += 1

    def copy(self) -> Sketch:
        """Return a sketch of what has been counted so far."""
        return Sketch(self._buckets, self._counts)

    def __sub__(self, earlier: Sketch) -> Sketch:
        """Return what was counted after `earlier` was copied from this sketch."""
        pairs = zip(self._counts, earlier._counts, strict=True)
        return Sketch(self._buckets, [now - then for now, then in pairs])

    def quantiles(self, percentiles: Iterable[float]) -> dict[float, float]:
        """Return values by percentile (0..100); empty where nothing was counted."""
        ranks = list(accumulate(self._counts))
        total = ranks[-1]
        if not total:
            return {}
        return {
            percentile: self._buckets.value(bisect_left(ranks, _rank(percentile, total)))
            for percentile in percentiles
        }


def _rank(percentile: float, count: int) -> int:
    """Return which of `count` sorted values is the percentile, 1..count."""
    return int(percentile / 100 * (count - 1)) + 1

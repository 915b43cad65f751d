"""Estimates for all requests from the simulated ones, with their errors.

The skipped part of an interval is represented by its simulated part: each request that ended there
counts for `weight` requests, so that the counts sum to all arrivals. Errors come from the
differences between successive intervals of one plan, the estimator for systematic samples (Wolter,
"Introduction to Variance Estimation", chapter 8); they take trends for noise, and so are rather too
large. The range of a quantile is Woodruff's (JASA 47, 1952).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from services.simulator.stats.sampled_intervals import SampledInterval

_CONFIDENCE = 1.96
"""Standard errors on each side of a 95 % interval."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Range:
    """A 95 % confidence interval. Attributes: low, high."""

    low: float
    high: float


def weights(intervals: Sequence[SampledInterval], model: str) -> Numbers:
    """Return for each interval the number of requests that each one ended in it represents.

    Requests without a representative in their own interval are represented by the next interval
    with one, at the end by the last.
    """
    found = np.ones(len(intervals))
    carried, last = 0, -1
    for index, interval in enumerate(intervals):
        carried += interval.skipped.get(model, 0)
        ended = interval.ended(model)
        if ended:
            found[index] += carried / ended
            carried, last = 0, index
    if carried and last >= 0:
        found[last] += carried / intervals[last].ended(model)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Latencies of one model with their weights, in order.

    Attributes:
        value_s: Latencies, s.
        rank: Share of the requests that took no longer, 0..1.
    """

    value_s: Numbers
    rank: Numbers

    @classmethod
    def of(cls, intervals: Sequence[SampledInterval], weight: Numbers, model: str) -> Latencies:
        """Return the latencies of a model in all intervals."""
        return cls.times([interval.latency_s[model] for interval in intervals], weight)

    @classmethod
    def times(cls, by_interval: Sequence[Sequence[float]], weight: Numbers) -> Latencies:
        """Return the latencies of a model's requests in intervals, s."""
        parts = [np.asarray(each) for each in by_interval]
        value_s = np.concatenate([*parts, np.zeros(0)])
        counts = [len(part) for part in parts]
        order = np.argsort(value_s, kind="stable")
        rank = np.cumsum(np.repeat(weight, counts)[order])
        return cls(value_s[order], rank / rank[-1] if len(rank) else rank)

    def quantile_s(self, share: float) -> float | None:
        """Return the latency within which a share of the requests stay, s; None: there are none."""
        if not len(self.rank):
            return None
        index = int(np.searchsorted(self.rank, share))
        return float(self.value_s[min(index, len(self.rank) - 1)])

    def above(self, limit_s: float) -> float:
        """Return the share of requests that took longer than `limit_s`."""
        within = int(np.searchsorted(self.value_s, limit_s, side="right"))
        return float(1.0 - self.rank[within - 1]) if within else float(len(self.rank) > 0)


def quantile_range_s(
    intervals: Sequence[SampledInterval], latencies: Latencies, model: str, share: float
) -> Range | None:
    """Return the range of a quantile, s; None: too few intervals.

    Args:
        intervals: All intervals.
        latencies: Latencies with the quantile.
        model: Name of the model.
        share: The quantile, 0..1.
    """
    limit_s = latencies.quantile_s(share)
    if limit_s is None:
        return None
    above = [
        float(np.mean(np.asarray(interval.latency_s[model]) > limit_s))
        if interval.latency_s[model]
        else 0.0
        for interval in intervals
    ]
    error = _error_of_sum(intervals, above, model)
    if error is None:
        return None
    arrived = sum(interval.arrived.get(model, 0) for interval in intervals)
    spread = _CONFIDENCE * error / max(arrived, 1)
    low_s = latencies.quantile_s(max(share - spread, 0.0))
    high_s = latencies.quantile_s(min(share + spread, 1.0))
    return None if low_s is None or high_s is None else Range(low_s, high_s)


def active_error_j(intervals: Sequence[SampledInterval], model: str) -> float | None:
    """Return the 95 % error of a model's active energy, J; None: too few intervals."""
    per_request_j = [
        interval.active_j(model) / max(interval.ended(model), 1) for interval in intervals
    ]
    error_j = _error_of_sum(intervals, per_request_j, model)
    return None if error_j is None else _CONFIDENCE * error_j


def _error_of_sum(
    intervals: Sequence[SampledInterval], per_request: Sequence[float], model: str
) -> float | None:
    """Return the standard error of a sum over all requests.

    Args:
        intervals: All intervals.
        per_request: Mean over the requests that ended in each interval.
        model: Name of the model.
    """
    skipped = [interval.skipped.get(model, 0) for interval in intervals]
    if not any(skipped):
        return 0.0
    squares = [
        (per_request[two] - per_request[one]) ** 2 / 2 for one, two in _neighbours(intervals, model)
    ]
    if not squares:
        return None
    return math.sqrt(float(np.mean(squares)) * sum(count**2 for count in skipped))


def _neighbours(intervals: Sequence[SampledInterval], model: str) -> Iterator[tuple[int, int]]:
    """Yield successive intervals of one plan that represent something."""
    sampled = [
        i
        for i, interval in enumerate(intervals)
        if interval.skipped.get(model) and interval.ended(model)
    ]
    for one, two in pairwise(sampled):
        if intervals[one].table == intervals[two].table:
            yield one, two

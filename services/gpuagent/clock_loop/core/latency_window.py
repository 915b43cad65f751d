"""Recent latencies of one segment's requests, with confidence bounds."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.gpuagent.clock_loop.core.decide import GovernedSegment, Partition
from services.gpuagent.shared_memory.latency_counters import (
    SIZES,
    Counts,
    largest_s,
    size_of,
    stretched,
)

LONGEST_S: Final = 10.0
"""Older samples are ignored."""

PATIENCE_S: Final = 60.0
"""Where requests are few, the clock stays for so long at first: a few seconds say nothing."""

EVIDENCE: Final = 3
"""Requests that must be late before a clock is called too low: fewer are chance."""

MEMORY: Final = 10.0
"""The record holds so many times the requests among which one may be late: 1000 at the 99th."""

BUDGET: Final = 0.5
"""Share of the requests that may be late which the loop lets be late."""

FORGET_S: Final = 600.0
"""A segment without a request for so long has no record."""

_CONFIDENCE: Final = 1.645  # standard deviations: 95 %, one-sided


@dataclass(frozen=True, slots=True)
class _Sample:
    """Requests that were answered. Attributes: began_s; counts; their number, > 0."""

    began_s: float
    counts: Counts
    total: int


@dataclass(slots=True)
class LatencyRecord:
    """A segment's last requests, at any clock: a thousand at the 99th percentile.

    It forgets by requests, not by time: those of a rare model count for an hour, those of a busy
    one for seconds.

    Attributes:
        allowed: Share of the requests that may be late, 0..1.
    """

    allowed: float
    _answered: float = 0.0
    _late: float = 0.0
    _at_full: NDArray[np.float64] = field(default_factory=lambda: np.zeros(SIZES))

    def add(self, counts: Counts, late: int, stretch: float) -> None:
        """Take in requests.

        Args:
            counts: Requests by latency, at least one.
            late: Of those.
            stretch: How much longer they took than at the highest clock, >= 1.
        """
        answered = int(counts.sum())
        kept = max(1.0 - answered * self.allowed / MEMORY, 0.0)
        self._answered = kept * self._answered + answered
        self._late = kept * self._late + late
        self._at_full = kept * self._at_full + stretched(counts, 1.0 / stretch)

    @property
    def budget_spent(self) -> bool:
        """True if late requests exceed BUDGET of those allowed by more than one."""
        return self._late > 1.0 + BUDGET * self.allowed * self._answered

    def bound_s(self, stretch: float) -> float:
        """Return the upper confidence bound of the latency at the percentile, s; 0: no requests.

        Of few requests it is the slowest. Source: the distribution-free bound by order statistics.

        Args:
            stretch: How much longer requests take at the clock in question, >= 1.
        """
        if self._answered < 1.0:
            return 0.0
        rank = 1
        while _upper_bound(rank) <= self.allowed * self._answered:
            rank += 1
        # Half a request less: remembered requests decay with every request that follows.
        return stretch * largest_s(self._at_full, rank - 0.5)


def _upper_bound(count: float) -> float:
    """Return the upper 95 % confidence bound of a Poisson count's mean (Wilson and Hilferty)."""
    more = count + 1.0
    return more * math.pow(1.0 - 1.0 / (9.0 * more) + _CONFIDENCE / (3.0 * math.sqrt(more)), 3)


@dataclass(slots=True)
class LatencyWindow:
    """A segment's counts: the newest samples, and a record of those before.

    Attributes:
        segment: The segment.
        stretch: How much longer requests take at the clock as it is than at the highest, >= 1.
        record: The last requests.
    """

    segment: GovernedSegment
    stretch: float = 1.0
    record: LatencyRecord = field(init=False)
    _samples: deque[_Sample] = field(default_factory=deque)
    _last: tuple[float, Counts] | None = None
    _since_s: float = 0.0  # when the first counts came
    _fresh_s: float = 0.0  # when the clock changed
    _answered_s: float = 0.0

    def __post_init__(self) -> None:
        self.record = LatencyRecord(self._share)

    def add(self, at_s: float, counts: Counts) -> None:
        """Take in a sample.

        Args:
            at_s: When it was read, s.
            counts: Requests by latency since the start. Where they went back, they were reset.
        """
        if self._last is None:
            self._since_s = self._fresh_s = self._answered_s = at_s
        else:
            before_s, before = self._last
            self._take(before_s, at_s, counts if np.any(counts < before) else counts - before)
        self._last = (at_s, counts)

    def restart(self, stretch: float) -> None:
        """Restart at another clock: earlier samples become hints.

        Args:
            stretch: How much longer requests take there than at the highest clock, >= 1.
        """
        self.stretch = stretch
        self._fresh_s = self._now_s

    def seen(self) -> Partition:
        """Return the estimate from the samples, of which no more are read than necessary."""
        now, now_s = self._newest(min(LONGEST_S, self._now_s - self._fresh_s))
        lately, lately_s = self._newest(min(PATIENCE_S, self._now_s - self._since_s))
        total = sum(sample.total for sample in now)
        settled = total >= self._needed or now_s > LONGEST_S / 2
        answered = sum(sample.total for sample in lately)
        enough = answered >= self._needed or lately_s > PATIENCE_S - LONGEST_S / 2
        counts: Counts = sum((sample.counts for sample in now), np.zeros(SIZES, np.uint64))
        latency_s = max(self._at_percentile_s(counts, total), self.record.bound_s(self.stretch))
        return Partition(
            self.segment,
            proven_s=self._at_percentile_s(counts, total, EVIDENCE) if total else None,
            latency_s=latency_s if settled and enough else None,
            rate_rps=answered / lately_s if answered else 0.0,
            budget_spent=self.record.budget_spent,
        )

    @property
    def _now_s(self) -> float:
        return self._last[0] if self._last else 0.0

    @property
    def _share(self) -> float:
        return 1.0 - self.segment.percentile / 100.0

    @property
    def _needed(self) -> int:
        return math.floor(EVIDENCE / self._share + 1e-6)

    def _take(self, began_s: float, at_s: float, new: Counts) -> None:
        total = int(new.sum())
        if total:
            self._answered_s = at_s
            self._samples.append(_Sample(began_s, new, total))
            self.record.add(new, int(new[size_of(self.segment.objective_s) :].sum()), self.stretch)
        elif at_s - self._answered_s > FORGET_S:
            self.record = LatencyRecord(self._share)
        while self._samples and at_s - self._samples[0].began_s > PATIENCE_S:
            self._samples.popleft()

    def _newest(self, longest_s: float) -> tuple[list[_Sample], float]:
        """Return the newest samples, as few as the percentile needs, and since when they are, s."""
        found: list[_Sample] = []
        total = 0
        for sample in reversed(self._samples):
            if self._now_s - sample.began_s > longest_s + _TINY_S:
                break
            found.append(sample)
            total += sample.total
            if total >= self._needed:
                return found, self._now_s - sample.began_s
        return found, longest_s

    def _at_percentile_s(self, counts: Counts, total: int, least_rank: int = 1) -> float:
        """Return the latency that the percentile's share of requests exceeds; 0: of none."""
        if not total:
            return 0.0
        rank = max(math.ceil(self._share * total - 1e-9), least_rank)
        return largest_s(counts, min(rank, total))


_TINY_S: Final = 1e-6

"""What one segment's requests waited for lately, as far as the evidence goes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from services.gpuagent.shared_memory.latency_counters import SIZES, Counts, largest_s, stretched

LONGEST_S: Final = 10.0
"""Older samples say nothing of now."""

PATIENCE_S: Final = 60.0
"""Where requests are few, a percentile is taken over so long: a few seconds say nothing."""

EVIDENCE: Final = 3
"""Requests that must be late before a clock is called too low: fewer are chance."""


@dataclass(frozen=True, slots=True)
class LatencyEvidence:
    """What is known of a segment's latency at the clock as it is.

    Attributes:
        proven_s: Latency that so many requests exceed that the percentile does too, s. None: no
            request was answered since the clock last changed.
        latency_s: The latency at the percentile, s; 0: no requests. None: not known yet.
        rate_rps: Requests answered per second.
    """

    proven_s: float | None = None
    latency_s: float | None = None
    rate_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sample:
    """Attributes: length_s; counts of requests; their number; stretch, of latency at its clock."""

    length_s: float
    counts: Counts
    total: int
    stretch: float


@dataclass(slots=True)
class LatencyWindow:
    """The newest samples of a segment's counts.

    Attributes:
        percentile: The objective's, 0 < percentile < 100.
        stretch: How much longer requests take at the clock as it is than at the highest, >= 1.
    """

    percentile: float
    stretch: float = 1.0
    _samples: deque[_Sample] = field(default_factory=deque)
    _fresh: int = 0
    _length_s: float = 0.0
    _last: tuple[float, Counts] | None = None

    def add(self, at_s: float, counts: Counts) -> None:
        """Take in a sample.

        Args:
            at_s: When it was read, s.
            counts: Requests by latency since the start. Where they went back, they were reset.
        """
        if self._last is not None:
            before_s, before = self._last
            new = counts if np.any(counts < before) else counts - before
            sample = _Sample(at_s - before_s, new, int(new.sum()), self.stretch)
            self._samples.append(sample)
            self._fresh += 1
            self._length_s += sample.length_s
        self._last = (at_s, counts)
        while self._length_s > PATIENCE_S:
            self._length_s -= self._samples.popleft().length_s
        self._fresh = min(self._fresh, len(self._samples))

    def restart(self, stretch: float) -> None:
        """Go to another clock: what was seen before proves nothing, but still hints.

        Args:
            stretch: How much longer requests take there than at the highest clock, >= 1.
        """
        self.stretch = stretch
        self._fresh = 0

    def seen(self) -> LatencyEvidence:
        """Return what the samples say; it takes no more samples than the percentile needs."""
        needed = math.floor(EVIDENCE / self._share + 1e-6)
        newest = list(reversed(self._samples))
        now = _gathered(newest[: self._fresh], needed, LONGEST_S, self.stretch)
        lately = _gathered(newest, needed, PATIENCE_S, self.stretch)
        settled = now.total >= needed or now.length_s > LONGEST_S / 2
        enough = lately.total >= needed or lately.length_s > PATIENCE_S - LONGEST_S / 2
        latency_s = max(self._at_percentile_s(now), self._at_percentile_s(lately))
        return LatencyEvidence(
            proven_s=self._at_percentile_s(now, EVIDENCE) if now.total else None,
            latency_s=latency_s if settled and enough else None,
            rate_rps=lately.total / lately.length_s if lately.total else 0.0,
        )

    @property
    def _share(self) -> float:
        return 1.0 - self.percentile / 100.0

    def _at_percentile_s(self, sample: _Sample, least_rank: int = 1) -> float:
        """Return the latency that the percentile's share of a sample exceeds; 0: of none."""
        if not sample.total:
            return 0.0
        rank = max(math.ceil(self._share * sample.total - 1e-9), least_rank)
        return largest_s(sample.counts, min(rank, sample.total))


def _gathered(newest: Iterable[_Sample], needed: int, longest_s: float, stretch: float) -> _Sample:
    """Return samples as one, as if all had been taken at the clock as it is."""
    by_stretch: dict[float, Counts] = {}
    total, length_s = 0, 0.0
    for sample in newest:
        if total >= needed or length_s + sample.length_s > longest_s:
            break
        length_s += sample.length_s
        if sample.total:
            total += sample.total
            known = by_stretch.get(sample.stretch)
            by_stretch[sample.stretch] = sample.counts if known is None else known + sample.counts
    counts = np.zeros(SIZES, np.uint64)
    for before, found in by_stretch.items():
        counts = counts + stretched(found, stretch / before)
    return _Sample(length_s, counts, total, stretch)

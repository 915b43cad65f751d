"""What one segment's requests waited for lately, as far as the evidence goes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from services.gpuagent.latencies import SIZES, Counts, largest_s

LONGEST_S: Final = 10.0
"""Older samples say nothing of now."""

EVIDENCE: Final = 3
"""Requests that must be late before a clock is called too low: fewer are chance."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a segment's latency since its clock last changed.

    Attributes:
        proven_s: Latency that so many requests exceed that the percentile does too, s. None: no
            request was answered.
        latency_s: The latency at the percentile, s; 0: nobody asks. None: not known yet.
        rate_rps: Requests answered per second.
    """

    proven_s: float | None = None
    latency_s: float | None = None
    rate_rps: float = 0.0


@dataclass(slots=True)
class Window:
    """The newest samples of a segment's counts.

    Attributes:
        percentile: The objective's, 0 < percentile < 100.
    """

    percentile: float
    _samples: deque[tuple[float, Counts]] = field(default_factory=deque)  # length, requests
    _last: tuple[float, Counts] | None = None

    def add(self, at_s: float, counts: Counts) -> None:
        """Take in a sample.

        Args:
            at_s: When it was read, s.
            counts: Requests by latency since ever. Where they went back, they began anew.
        """
        if self._last is not None:
            before_s, before = self._last
            went_back = bool(np.any(counts < before))
            self._samples.append((at_s - before_s, counts if went_back else counts - before))
        self._last = (at_s, counts)
        while sum(length_s for length_s, _ in self._samples) > LONGEST_S:
            self._samples.popleft()

    def restart(self) -> None:
        """Forget what was seen at another clock."""
        self._samples.clear()

    def seen(self) -> Seen:
        """Return what the samples say; no more of them are asked than the percentile needs."""
        share = 1.0 - self.percentile / 100.0
        counts, length_s = np.zeros(SIZES, np.uint64), 0.0
        needed = math.floor(EVIDENCE / share + 1e-6)
        for sample_s, requests in reversed(self._samples):
            counts = counts + requests
            length_s += sample_s
            if counts.sum() >= needed:
                break
        total = int(counts.sum())
        long_enough = length_s > LONGEST_S / 2
        if not total:
            return Seen(latency_s=0.0 if long_enough else None)
        rank = max(math.ceil(share * total - 1e-9), 1)
        known = total >= needed or long_enough
        return Seen(
            proven_s=largest_s(counts, min(max(rank, EVIDENCE), total)),
            latency_s=largest_s(counts, rank) if known else None,
            rate_rps=total / length_s,
        )

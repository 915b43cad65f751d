"""Latencies of a server that others run, by its own histograms, against one objective. Pure."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from services.gpuagent.clock_loop.core.decide import GovernedSegment, Partition
from services.kit.server_metrics.figures import Histogram

LONGEST_S: Final = 60.0
"""Older requests are ignored, as long as there are enough newer ones."""

EVIDENCE: Final = 3
"""Requests that must be late before a clock is called too low: fewer are chance."""


@dataclass(slots=True)
class ObjectiveWindow:
    """The newest requests of a server, at the clock as it is.

    Attributes:
        objective: The objective, as the clock loop knows a segment's.
    """

    objective: GovernedSegment
    _samples: deque[tuple[float, Histogram]] = field(default_factory=deque)

    def add(self, at_s: float, total: Histogram) -> None:
        """Take in all requests that were counted so far.

        Args:
            at_s: When, s.
            total: By latency, since the server was first seen.
        """
        self._samples.append((at_s, total))
        while len(self._samples) > 2 and at_s - self._samples[1][0] >= LONGEST_S:
            self._samples.popleft()

    def restart(self) -> None:
        """Forget what came at another clock; requests that are in progress count as new ones."""
        self._samples = deque(list(self._samples)[-1:])

    def seen(self) -> Partition:
        """Return the estimate of the latency at the objective's percentile."""
        if len(self._samples) < 2:
            return Partition(self.objective)
        (began_s, before), (at_s, total) = self._samples[0], self._samples[-1]
        new = total.since(before)
        rate_rps = new.count / (at_s - began_s)
        if new.count < self._needed:  # too few to say; none at all are not late
            return Partition(
                self.objective, latency_s=None if new.count else 0.0, rate_rps=rate_rps
            )
        latency_s = new.quantile(self.objective.percentile / 100)
        latency_s = math.inf if latency_s is None else latency_s
        return Partition(self.objective, latency_s, latency_s, rate_rps)

    @property
    def _needed(self) -> int:
        return math.floor(EVIDENCE / (1 - self.objective.percentile / 100) + 1e-6)

"""A model's counts between two moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from services.router.core.accounting.histogram import Sketch


@dataclass(frozen=True, slots=True)
class StatsWindow:
    """Counts of one stretch of time.

    Attributes:
        arrivals: Requests that arrived, refused ones included.
        accepted: Requests that were not refused.
        answered: Requests answered.
        failed: Requests that ended in an error.
        retried: Times that a request was given to another worker.
        late: Answered, but later than the SLO.
        by_variant: Answered, by the variant that did.
        latency: Of the answered.
    """

    arrivals: int
    accepted: int
    answered: int
    failed: int
    retried: int
    late: int
    by_variant: Counter[str]
    latency: Sketch

    def quantiles_s(self, percentiles: Iterable[float]) -> dict[float, float]:
        """Return latencies by percentile (0..100), s; empty where nothing was answered."""
        return self.latency.quantiles_s(percentiles)

    def since(self, earlier: StatsWindow) -> StatsWindow:
        """Return the counts between two moments."""
        return StatsWindow(
            self.arrivals - earlier.arrivals,
            self.accepted - earlier.accepted,
            self.answered - earlier.answered,
            self.failed - earlier.failed,
            self.retried - earlier.retried,
            self.late - earlier.late,
            self.by_variant - earlier.by_variant,
            self.latency.since(earlier.latency),
        )

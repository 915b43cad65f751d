"""A model's counts between two moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from services.kit.sketch import Sketch


@dataclass(frozen=True, slots=True)
class StatsWindow:
    """Counts in a window of time.

    Attributes:
        arrivals: Requests that arrived, refused ones included.
        accepted: Requests that were not refused.
        answered: Requests answered.
        failed: Requests that ended in an error.
        retried: Times that a request was given to another worker.
        late: Requests answered later than the objective.
        by_variant: Requests answered, by variant.
        latency: Latencies of the answers.
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
        return self.latency.quantiles(percentiles)

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

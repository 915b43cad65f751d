"""Requests that instances have answered, by their agents' counts, which no router reports."""

from collections.abc import Callable, Mapping

from cinquefoil.gpuagent.v1.records import Segment
from services.planner.core.online_search.measurement import NO_COUNTS, CounterReadings


class AnsweredRequests:
    """Sums over the segments of each model; those that have ended keep counting."""

    def __init__(
        self, readings: CounterReadings, running: Callable[[], Mapping[str, Segment]]
    ) -> None:
        """Start from nothing.

        Args:
            readings: Counters of segments.
            running: Returns the segments by id.
        """
        self._readings, self._running = readings, running
        self._before = readings.reading(0.0).segments
        self._totals: dict[str, float] = {}

    def __call__(self) -> Mapping[str, float]:
        """Return the requests answered so far, by model; a pipeline's count where they come in."""
        running, now = self._running(), self._readings.reading(0.0).segments
        for segment_id, counters in now.items():
            known = running.get(segment_id)
            if known is None or known.spec.stage:
                continue
            done = counters.since(self._before.get(segment_id, NO_COUNTS)).requests
            self._totals[known.spec.model] = self._totals.get(known.spec.model, 0.0) + done
        self._before = now
        return self._totals

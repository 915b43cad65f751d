"""How much load to provide for: what is configured, or what is forecast where that is more.

Routers' reports are added up second by second, seconds make intervals, and each interval that has
passed teaches the model's forecaster (`load_forecast`). A load that is already above its forecast
counts at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from services.kit.config import LoadForecast
from services.planner.core.forecast.load_forecast import MARGIN, Forecast, Forecaster, Interval

LATE_S = 2.0
"""How long a report may be under way; an interval is not kept open for longer."""

END = 1 / 6
"""Part of an interval that counts as its end."""

MIN_SEEN = 0.5
"""Part of an interval that must have been reported; less is a hole in the record."""


@dataclass(slots=True)
class _Record:
    """What was reported of one interval.

    Attributes:
        seconds: Those that some router has reported.
        arrivals: Requests by model and second.
        busiest: Most requests of a second, by model.
    """

    seconds: set[int] = field(default_factory=set)
    arrivals: dict[str, dict[int, float]] = field(default_factory=dict)
    busiest: dict[str, float] = field(default_factory=dict)

    def add(self, second: int, arrivals: Iterable[tuple[str, float]]) -> None:
        """Add what arrived in a second, or in a part of it."""
        self.seconds.add(second)
        for model, count in arrivals:
            own = self.arrivals.setdefault(model, {})
            own[second] = own.get(second, 0.0) + count
            self.busiest[model] = max(self.busiest.get(model, 0.0), own[second])

    def interval(self, model: str, start_s: float, interval_s: float) -> Interval:
        """Return what a forecaster learns of a model."""
        own = self.arrivals.get(model, {})
        late = start_s + (1 - END) * interval_s
        end = [own.get(second, 0.0) for second in self.seconds if second >= late]
        return Interval(
            start_s=start_s,
            mean_rps=sum(own.values()) / len(self.seconds),
            max_rps=self.busiest.get(model, 0.0),
            end_rps=sum(end) / len(end) if end else None,
        )


class Demand:
    """Load per model, from the routers' reports."""

    def __init__(
        self,
        configured_rps: Mapping[str, float],
        settings: LoadForecast | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Start without history.

        Args:
            configured_rps: Least load to provide for, by model; other models are not ours.
            settings: Interval and coverage; None: the defaults.
            now_s: Returns the Unix time, s.
        """
        settings = settings or LoadForecast()
        self._configured_rps = dict(configured_rps)
        self._interval_s = settings.interval_s
        self._now_s = now_s
        self._forecasters = {
            model: Forecaster(settings.interval_s, settings.coverage) for model in configured_rps
        }
        self._reported_until_s: dict[str, float] = {}
        self._records: dict[int, _Record] = {}
        self._open = 0  # earlier intervals are closed; what is reported of them comes too late

    def observe(self, router_id: str, arrivals: Mapping[str, int], window_s: float) -> None:
        """Take in one router's report.

        Args:
            router_id: The router.
            arrivals: Requests that arrived, by model; unknown models are not ours to serve.
            window_s: Time they arrived in, s, up to now; reports without time say nothing.
        """
        if not 0 < window_s < math.inf:
            return
        self._close()
        end_s = self._end_s(router_id, window_s)
        self._reported_until_s[router_id] = end_s
        rates_rps = [
            (model, count / window_s)
            for model, count in arrivals.items()
            if model in self._configured_rps
        ]
        for second, part_s in _seconds(max(end_s - window_s, self._open * self._interval_s), end_s):
            record = self._records.setdefault(self._index(second), _Record())
            record.add(second, ((model, rate * part_s) for model, rate in rates_rps))
        self._close()

    def forget(self, router_id: str) -> None:
        """Drop the reports of a router that has disconnected."""
        self._reported_until_s.pop(router_id, None)

    def rates_rps(self) -> dict[str, float]:
        """Return the load to provide for, req/s by model.

        The largest of: the configured load, the forecast's upper bound, and the busiest second
        since the forecast was made. Before the first forecast that second gets a margin.
        """
        forecasts = self.forecasts()
        records = self._records.values()
        rates_rps = {}
        for model, configured in self._configured_rps.items():
            seen = max((each.busiest.get(model, 0.0) for each in records), default=0.0)
            forecast = forecasts.get(model)
            expected = forecast.high_rps if forecast else MARGIN * seen
            rates_rps[model] = max(configured, expected, seen)
        return rates_rps

    def forecasts(self) -> dict[str, Forecast]:
        """Return the forecasts in force, by model: none at first, and none after a silence."""
        self._close()
        stale_s = self._now_s() - 2 * self._interval_s - LATE_S
        found = ((model, each.forecast()) for model, each in self._forecasters.items())
        return {model: each for model, each in found if each and each.start_s > stale_s}

    def _end_s(self, router_id: str, window_s: float) -> float:
        """Return when a report's window ended.

        A router's windows follow one another without a gap, so that a report which was a little
        late or early belongs where the last one ended, not on top of it.
        """
        now_s = self._now_s()
        due_s = self._reported_until_s.get(router_id, -math.inf) + window_s
        return due_s if abs(due_s - now_s) < LATE_S else now_s

    def _index(self, at_s: float) -> int:
        return math.floor(at_s / self._interval_s)

    def _close(self) -> None:
        """Learn from the intervals that every router has reported, or that are over for long."""
        now_s = self._now_s()
        reported_s = min(self._reported_until_s.values(), default=now_s - LATE_S)
        self._open = max(self._open, self._index(min(now_s, max(reported_s, now_s - LATE_S))))
        for index in sorted(index for index in self._records if index < self._open):
            record = self._records.pop(index)
            if len(record.seconds) >= MIN_SEEN * self._interval_s:
                for model, forecaster in self._forecasters.items():
                    start_s = index * self._interval_s
                    forecaster.observe(record.interval(model, start_s, self._interval_s))


def _seconds(begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Yield the seconds of a window, with how much of each is in it, s."""
    for second in range(math.floor(begin_s), math.ceil(end_s)):
        yield second, min(end_s, second + 1) - max(begin_s, second)

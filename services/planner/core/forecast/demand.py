"""Load to provide for: the configured load at first, then the forecast, but a least load.

Routers' reports are added up by second, seconds form intervals, and each complete interval updates
the model's forecaster (`load_forecast`). A load above its forecast counts at once; a falling load
counts only after it has been lower for a while, like the stabilisation window of Kubernetes'
HorizontalPodAutoscaler.

The busiest second of a slow model is noise: at 0.2 req/s a second with a request in it is five
times the mean. A load is therefore that of the busiest window with at least `MIN_REQUESTS` requests
and at least one second: in a Poisson process such a window exceeds 1 + 3 / sqrt(100) = 1.3 times
the mean only by chance (3 sigma), however slow the model is.

Routers are believed as long as they are there: requests that no instance can answer yet are demand,
too. Where more arrived than `MOST_PER_ANSWER` times what instances answered, by their agents'
counts, no more than that rate is learnt, nor stays once a router has left.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from services.kit.config import LoadForecast, Model
from services.planner.core.forecast.load_forecast import MARGIN, Forecast, Forecaster, Interval

LATE_S = 2.0
"""Longest delay of a report, s; an interval is not kept open for longer."""

END = 1 / 6
"""Last part of an interval, whose mean load counts as that at its end."""

MIN_REQUESTS = 100.0
"""Requests in a window from which its load represents the model's."""

STEADY_REQUESTS = 10 * MIN_REQUESTS
"""Requests over which a load must be lower before it counts; sets the time for slow models."""

MOST_GROWTH = 2.0
"""Limit of a load's growth while workers start, relative to its forecast."""

BURST_S = 30.0
"""Shortest window where bursts count by themselves, s: three times the longest of their windows."""

MOST_PER_ANSWER = 1.5
"""Arrivals for each answer that are believed of a router that is gone, beyond `MIN_REQUESTS`.

An overloaded router that restarts leaves more than its instances can serve: none is taken away.
"""

LEARNT = 0.05
"""Of the time since a model's first report, the window that may be used: `BURST_S` after ten
minutes, when its bursts have been counted (`burstiness`)."""
_LEAST_RPS = 1e-3
"""Load of a model that is provided for although nearly nothing is requested, req/s."""

MIN_SEEN = 0.5
"""Least share of an interval that must have been reported; otherwise it is a gap."""


class _Arrivals:
    """The latest requests of a model by second: as many as a window needs.

    Args:
        first: First second that was reported.
        min_span_s: Shortest window for too few requests, s.
        window_s: Shortest window, s.
    """

    def __init__(self, first: int, min_span_s: float, window_s: float = 0.0) -> None:
        self._first = first
        self._min_span_s = min_span_s
        self._window_s = window_s
        self._counts: deque[tuple[int, float]] = deque()

    def add(self, second: int, count: float) -> None:
        """Add arrivals of a second, or of a part of it; they may be slightly late."""
        later = []
        while self._counts and self._counts[-1][0] >= second:
            later.append(self._counts.pop())
        if later and later[-1][0] == second:
            count += later.pop()[1]
        self._counts.append((second, count))
        self._counts.extend(reversed(later))

    def rate_rps(self, end: int) -> float:
        """Return the load of the shortest significant window that ends with a second, req/s."""
        total, window_s = 0.0, self._least_s(end)
        for second, count in reversed(self._counts):
            total += count if second <= end else 0.0
            if total >= MIN_REQUESTS and end - second + 1 >= window_s:
                return total / (end - second + 1)
        known_s = end - self._first + 1
        return total / (known_s if total >= MIN_REQUESTS else max(known_s, self._min_span_s))

    def cap(self, most_rps: float) -> None:
        """Drop what exceeds a load."""
        self._counts = deque((second, min(count, most_rps)) for second, count in self._counts)

    def _least_s(self, end: int) -> float:
        """Return the shortest window, s: until bursts are known, they count as load."""
        return min(self._window_s, LEARNT * (end - self._first))

    def forget(self, before: int) -> None:
        """Drop arrivals that no window ending at `before` or later needs."""
        needed = 0.0
        for index, (second, count) in enumerate(reversed(self._counts)):
            needed += count if second <= before else 0.0
            if needed >= MIN_REQUESTS and before - second + 1 >= self._window_s:
                for _ in range(len(self._counts) - index - 1):
                    self._counts.popleft()
                return


@dataclass(slots=True)
class _Record:
    """Reports about one interval.

    Attributes:
        seconds: Seconds that some router has reported.
        arrivals: Requests by model and second.
        busiest: Load of the busiest window that ends in the interval, by model, req/s.
    """

    seconds: set[int] = field(default_factory=set)
    arrivals: dict[str, dict[int, float]] = field(default_factory=dict)
    busiest: dict[str, float] = field(default_factory=dict)

    def add(self, second: int, model: str, count: float, rate_rps: float) -> None:
        """Add arrivals of a second, or of a part of it, and the window that ends there."""
        own = self.arrivals.setdefault(model, {})
        own[second] = own.get(second, 0.0) + count
        self.busiest[model] = max(self.busiest.get(model, 0.0), rate_rps)

    def count(self, model: str) -> float:
        """Return the arrivals of a model."""
        return sum(self.arrivals.get(model, {}).values())

    def cap(self, model: str, most_rps: float) -> None:
        """Drop what exceeds a load of a model."""
        if model in self.arrivals:
            own = self.arrivals[model]
            self.arrivals[model] = {second: min(each, most_rps) for second, each in own.items()}
            self.busiest[model] = min(self.busiest[model], most_rps)

    def interval(self, model: str, start_s: float, interval_s: float, last_rps: float) -> Interval:
        """Return a model's interval for its forecaster; `last_rps`: load of its last window."""
        own = self.arrivals.get(model, {})
        late = start_s + (1 - END) * interval_s
        end = [own.get(second, 0.0) for second in self.seconds if second >= late]
        return Interval(
            start_s=start_s,
            mean_rps=sum(own.values()) / len(self.seconds),
            max_rps=max(self.busiest.get(model, 0.0), last_rps),
            end_rps=sum(end) / len(end) if end else None,
        )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Requests of a model in some time. Attributes: seconds, arrivals, answered."""

    seconds: int = 0
    arrivals: float = 0.0
    answered: float = 0.0

    @classmethod
    def of(cls, records: Collection[_Record], model: str, answered: float) -> "_Seen":
        """Return the sums of records."""
        seconds = sum(len(each.seconds) for each in records)
        return cls(seconds, sum(each.count(model) for each in records), answered)

    def plus(self, other: "_Seen") -> "_Seen":
        """Return the sum of both."""
        answered = self.answered + other.answered
        return _Seen(self.seconds + other.seconds, self.arrivals + other.arrivals, answered)

    @property
    def believed(self) -> float:
        """Most arrivals that are believed of routers that are gone."""
        return MOST_PER_ANSWER * self.answered + MIN_REQUESTS

    @property
    def most_rps(self) -> float:
        """Those arrivals as a load, req/s."""
        return self.believed / max(self.seconds, 1)


@dataclass(frozen=True, slots=True)
class ConfiguredLoad:
    """A model's load as configured, req/s.

    Attributes:
        initial_rps: Load to provide for until requests are seen.
        least_rps: Least load to provide for afterwards; 0: none.
    """

    initial_rps: float
    least_rps: float

    @classmethod
    def of(cls, model: Model) -> "ConfiguredLoad":
        """Return the load that a deployment has of a model."""
        least_rps = model.demand_rps if model.demand_min_rps is None else model.demand_min_rps
        return cls(max(model.demand_rps, least_rps), least_rps)


@dataclass(slots=True)
class _Held:
    """Sliding maximum: the values that no later one exceeds, oldest first."""

    values: deque[tuple[float, float]] = field(default_factory=deque)

    def most(self, value: float, now_s: float, hold_s: float) -> float:
        """Add a value; return the largest of the last `hold_s`."""
        while self.values and self.values[-1][1] <= value:
            self.values.pop()
        self.values.append((now_s, value))
        while self.values[0][0] < now_s - hold_s:
            self.values.popleft()
        return self.values[0][1]


class Demand:
    """Load per model, from the routers' reports."""

    def __init__(  # noqa: PLR0913 - all but the first have a default
        self,
        configured: Mapping[str, ConfiguredLoad],
        settings: LoadForecast | None = None,
        now_s: Callable[[], float] = time.time,
        scale_down_s: float = 0.0,
        *,
        bursts_apart: Collection[str] = (),
        answered: Callable[[], Mapping[str, float]] | None = None,
        boot_s: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        """Start without history.

        Args:
            configured: Configured load by model; other models are ignored.
            settings: Interval and coverage; None: the defaults.
            now_s: Returns the Unix time, s.
            scale_down_s: Time for which a load must be lower before it counts, s; longer for slow
                models, until enough requests have arrived to rule out chance.
            bursts_apart: Models whose plans count bursts by themselves (`problem.text_rule`): their
                load is the mean over `BURST_S` at least.
            answered: Returns the requests that instances have answered so far, by model; None:
                routers are believed.
            boot_s: Returns how long a model's workers take to start, s: if the load is forecast to
                grow, it is provided for as it will be by then.
        """
        settings = settings or LoadForecast()
        self._configured = dict(configured)
        self._interval_s = settings.interval_s
        self._coverage = settings.coverage
        self._now_s = now_s
        self._forecasters = {
            model: Forecaster(settings.interval_s, settings.coverage) for model in configured
        }
        self._reported_until_s: dict[str, float] = {}
        self._scale_down_s = scale_down_s
        self._bursts_apart = frozenset(bursts_apart)
        self._boot_s = boot_s
        self._arrivals: dict[str, _Arrivals] = {}
        self._held = {model: _Held() for model in configured}
        self._known: set[str] = set()  # models with a forecast, now or earlier
        self._requested_s = dict.fromkeys(configured, now_s())  # last request, or the start
        self._records: dict[int, _Record] = {}
        self._last: _Record | None = None  # the last interval that was closed
        self._answered = answered
        self._answered_then: dict[str, float] = {}  # as the last interval was closed
        self._seen: dict[str, _Seen] = {}  # in that interval
        self._open = 0  # earlier intervals are closed; reports about them are late

    def configure(self, configured: Mapping[str, ConfiguredLoad]) -> None:
        """Replace the configured loads; forecasters keep their history."""
        self._configured = dict(configured)
        for model in configured:
            if model not in self._held:
                self._forecasters[model] = Forecaster(self._interval_s, self._coverage)
                self._requested_s[model] = self._now_s()
            self._held[model] = _Held()  # a configured load is not an observed one

    def park(self, models: Iterable[str]) -> None:
        """Record that models had no requests for long, before a restart."""
        for model in models:
            self._known.add(model)
            self._requested_s[model] = -math.inf

    def observe(self, router_id: str, arrivals: Mapping[str, int], window_s: float) -> None:
        """Add one router's report.

        Args:
            router_id: Id of the router.
            arrivals: Arrived requests by model; models outside the deployment are ignored.
            window_s: Length of the window, up to now, s; a report with 0 is ignored.
        """
        if not 0 < window_s < math.inf:
            return
        self._close()
        end_s = self._end_s(router_id, window_s)
        self._reported_until_s[router_id] = end_s
        rates_rps = [
            (model, count / window_s)
            for model, count in arrivals.items()
            if model in self._configured
        ]
        for second, part_s in _seconds(max(end_s - window_s, self._open * self._interval_s), end_s):
            record = self._records.setdefault(self._index(second), _Record())
            record.seconds.add(second)
            for model, rate_rps in rates_rps:
                self._add(record, second, model, rate_rps * part_s)
        self._close()

    def _add(self, record: _Record, second: int, model: str, count: float) -> None:
        known = self._arrivals.get(model)
        if known is None:
            window_s = BURST_S if model in self._bursts_apart else 0.0
            known = self._arrivals[model] = _Arrivals(second, self._interval_s, window_s)
        if count > 0:
            self._requested_s[model] = self._now_s()
            known.add(second, count)
            record.add(second, model, count, known.rate_rps(second))

    def forget(self, router_id: str) -> None:
        """Drop the reports of a router that has disconnected, except what may be answered."""
        self._close()
        self._reported_until_s.pop(router_id, None)
        records = self._records.values()
        for model, answered in self._answers().items():
            seen = _Seen.of(records, model, answered).plus(self._seen.get(model, _Seen()))
            if seen.arrivals > seen.believed:
                for record in records:
                    record.cap(model, seen.most_rps)
                if known := self._arrivals.get(model):
                    known.cap(seen.most_rps)
                self._held[model] = _Held()

    def _answers(self) -> dict[str, float]:
        """Return the requests answered since the last interval was closed, by model."""
        now = {} if self._answered is None else self._answered()
        return {
            model: total - self._answered_then.get(model, 0.0)
            for model, total in now.items()
            if model in self._configured
        }

    def rates_rps(self) -> dict[str, float]:
        """Return the load to provide for, req/s by model.

        The largest of the configured load, the forecast's upper bound, and the busiest window since
        the forecast was made (before the first forecast, with a margin); held for `scale_down_s`.
        0: the model has no least load, and had no request for that time.
        """
        forecasts, now_s = self.forecasts(), self._now_s()
        self._known |= forecasts.keys()
        records = self._records.values()
        rates_rps = {}
        for model, configured in self._configured.items():
            unused_s = self._unused_s(model)
            if unused_s <= 0:
                rates_rps[model] = 0.0
                self._held[model] = _Held()
                continue
            seen = max((each.busiest.get(model, 0.0) for each in records), default=0.0)
            forecast = forecasts.get(model)
            expected = MARGIN * seen
            if forecast:
                expected = forecast.high_rps * self._growth(model, forecast)
            given = configured.least_rps if model in self._known else configured.initial_rps
            wanted = max(given, expected, seen, _LEAST_RPS)
            hold_s = self._scale_down_s and max(self._scale_down_s, STEADY_REQUESTS / wanted)
            rates_rps[model] = self._held[model].most(wanted, now_s, hold_s)
        return rates_rps

    def _growth(self, model: str, forecast: Forecast) -> float:
        """Return by how much a load grows from the forecast interval until workers have started.

        It grows as from the last interval to the one that is forecast, at most twice as much.
        """
        before_rps = self._last.busiest.get(model, 0.0) if self._last else 0.0
        if not 0 < before_rps < forecast.expected_rps:
            return 1.0
        intervals = self._boot_s(model) / self._interval_s
        growth: float = (forecast.expected_rps / before_rps) ** intervals
        return min(growth, MOST_GROWTH)

    def unused_s(self) -> float:
        """Return the time until a model without requests has no load any more, s."""
        left_s = (self._unused_s(model) for model in self._configured)
        return min((each for each in left_s if each > 0), default=math.inf)

    def _unused_s(self, model: str) -> float:
        """Return the time for which a model without requests is still provided for, s."""
        if self._configured[model].least_rps > 0:
            return math.inf
        hold_s = max(self._scale_down_s, self._interval_s)
        return max(0.0, self._requested_s[model] + hold_s - self._now_s())

    def arriving_rps(self) -> dict[str, float]:
        """Return the mean load of the last interval and the current one, req/s by model.

        Empty until the first report.
        """
        records = [*([self._last] if self._last else []), *self._records.values()]
        seconds = sum(len(record.seconds) for record in records)
        return {
            model: sum(sum(each.arrivals.get(model, {}).values()) for each in records) / seconds
            for model in self._configured
            if seconds
        }

    def forecasts(self) -> dict[str, Forecast]:
        """Return the forecasts in force by model: none at first, and none after a silence."""
        self._close()
        stale_s = self._now_s() - 2 * self._interval_s - LATE_S
        found = ((model, each.forecast()) for model, each in self._forecasters.items())
        return {
            model: each
            for model, each in found
            if each and each.start_s > stale_s and model in self._configured
        }

    def _end_s(self, router_id: str, window_s: float) -> float:
        """Return the end of a report's window.

        A router's windows follow one another without gaps: a report that is slightly late or early
        starts where the last one ended and does not overlap it.
        """
        now_s = self._now_s()
        due_s = self._reported_until_s.get(router_id, -math.inf) + window_s
        return due_s if abs(due_s - now_s) < LATE_S else now_s

    def _index(self, at_s: float) -> int:
        return math.floor(at_s / self._interval_s)

    def _close(self) -> None:
        """Learn from the intervals that every router has reported, or that ended long ago."""
        now_s = self._now_s()
        reported_s = min(self._reported_until_s.values(), default=now_s - LATE_S)
        self._open = max(self._open, self._index(min(now_s, max(reported_s, now_s - LATE_S))))
        closed = sorted(index for index in self._records if index < self._open)
        most_rps = self._learnt([self._records[index] for index in closed]) if closed else {}
        for index in closed:
            record = self._last = self._records.pop(index)
            if len(record.seconds) >= MIN_SEEN * self._interval_s:
                start_s = index * self._interval_s
                last = math.ceil(start_s + self._interval_s) - 1
                for model, forecaster in self._forecasters.items():
                    known = self._arrivals.get(model)
                    last_rps = known.rate_rps(last) if known else 0.0
                    last_rps = min(last_rps, most_rps.get(model, math.inf))
                    forecaster.observe(record.interval(model, start_s, self._interval_s, last_rps))
                    if known:
                        known.forget(last)

    def _learnt(self, closed: Sequence[_Record]) -> dict[str, float]:
        """Cap closed intervals at what may be answered; return the loads where that was done."""
        found = {}
        for model, answered in self._answers().items():
            seen = self._seen[model] = _Seen.of(closed, model, answered)
            self._answered_then[model] = self._answered_then.get(model, 0.0) + answered
            if seen.arrivals > seen.believed:
                found[model] = seen.most_rps
                for each in closed:
                    each.cap(model, seen.most_rps)
        return found


def _seconds(begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Yield the seconds of a window, with the part of each that lies in it, s."""
    for second in range(math.floor(begin_s), math.ceil(end_s)):
        yield second, min(end_s, second + 1) - max(begin_s, second)

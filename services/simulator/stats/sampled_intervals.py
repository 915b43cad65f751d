"""Intervals of simulated time.

An interval is a stretch that was simulated request by request, and the skipped stretch after it
that it represents. Within the skipped stretch nothing changes that affects requests: neither plan
nor carbon intensity, and the load only a little.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.kit.request_cost import Usage
from services.planner.core.accounting.account import Tokens
from services.router.core.model import Instance, ModelRoutes

Arrivals = Mapping[str, NDArray[np.float64]]
"""Arrivals by model, s, in order."""


@dataclass(frozen=True, slots=True)
class Meters:
    """Readings, J. Attributes: idle_j (by node), active_j (by node and model)."""

    idle_j: Mapping[str, float] = field(default_factory=dict)
    active_j: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __sub__(self, before: Meters) -> Meters:
        return Meters(
            {key: value - before.idle_j.get(key, 0.0) for key, value in self.idle_j.items()},
            {key: value - before.active_j.get(key, 0.0) for key, value in self.active_j.items()},
        )


def _latencies() -> defaultdict[str, array[float]]:
    return defaultdict(lambda: array("d"))


@dataclass(slots=True)
class Texts:
    """Answered requests for text.

    Attributes:
        input_tokens, output_tokens: Tokens of all prompts and of all answers.
        first_token_s: Time to the first token of each, s.
        token_s: Mean time between tokens of each, s; 0: it had one.
        late: Number of texts that missed an objective.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    first_token_s: array[float] = field(default_factory=lambda: array("d"))
    token_s: array[float] = field(default_factory=lambda: array("d"))
    late: int = 0

    def add(self, usage: Usage, *, late: bool) -> None:
        """Count an answer."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.first_token_s.append(usage.first_token_s)
        self.token_s.append(usage.token_s)
        self.late += late


@dataclass(slots=True)
class WaitingCounts:
    """Requests that can wait, of one model; no other count has them.

    Attributes:
        sent, answered: Their number.
        late: Answered after the end of their window in grid time, or not at all.
        waited_s: From arrival to answer, all together, s.
        output_tokens: Tokens of their answers.
        energy_j: Attributed energy, J.
        energy_marginal_j: Energy that they added, J.
        carbon_marginal_gco2e: Its emissions, PUE included, gCO2e.
        at_once_gco2e: The same at the intensity of each arrival.
    """

    sent: int = 0
    answered: int = 0
    late: int = 0
    waited_s: float = 0.0
    output_tokens: int = 0
    energy_j: float = 0.0
    energy_marginal_j: float = 0.0
    carbon_marginal_gco2e: float = 0.0
    at_once_gco2e: float = 0.0


@dataclass(slots=True)
class SampledInterval:
    """A stretch of time; counts are of its simulated part unless stated otherwise.

    Attributes:
        begin_s, skip_s, end_s: Virtual time, s; skipped from `skip_s` on.
        table: Revision of the routing table at its start.
        intensity_gco2e_per_kwh: Intensity by zone.
        arrived: Arrived requests by model, in all of it.
        skipped: Number of them in its skipped part.
        latency_s: Latencies of answered requests, by model, s.
        answers: Answered requests, by model and variant.
        failures: Requests that failed, by model and reason.
        texts: Answered texts, by language model.
        spent: Idle energy of all of it; active energy of the simulated part.
    """

    begin_s: float
    skip_s: float
    end_s: float
    table: int
    intensity_gco2e_per_kwh: Mapping[str, float]
    arrived: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    latency_s: defaultdict[str, array[float]] = field(default_factory=_latencies)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    texts: defaultdict[str, Texts] = field(default_factory=lambda: defaultdict(Texts))
    spent: Meters = field(default_factory=Meters)

    def ended(self, model: str) -> int:
        """Return the number of a model's requests that were answered or failed."""
        failed = sum(count for (name, _), count in self.failures.items() if name == model)
        return len(self.latency_s[model]) + failed

    def active_j(self, model: str) -> float:
        """Return the active energy of a model's requests on all nodes, J."""
        return sum(used_j for (_, name), used_j in self.spent.active_j.items() if name == model)


@dataclass(slots=True)
class Lately:
    """Requests of a reporting window, as routers report them to the planner.

    Attributes:
        late: Requests answered later than the objective, by model.
        by_variant: Answered requests, by model, then by variant.
        latency_s: Latencies of answered requests, by model, s.
    """

    latency_s: defaultdict[str, array[float]] = field(default_factory=_latencies)
    late: Counter[str] = field(default_factory=Counter)
    by_variant: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


@dataclass(eq=False)
class Recorder:
    """Records intervals.

    Attributes:
        arrivals: Arrivals by model.
        intensity_gco2e_per_kwh: Current intensity by zone.
        client_s: Time from client to router and back, s.
        intervals: Completed intervals, oldest first.
        table: Revision of the routing table in use.
        tokens: Tokens since the start, by language model.
        waiting: Requests that can wait, by model.
    """

    arrivals: Arrivals
    intensity_gco2e_per_kwh: dict[str, float]
    client_s: float
    intervals: list[SampledInterval] = field(default_factory=list)
    table: int = 0
    tokens: dict[str, Tokens] = field(default_factory=dict)
    waiting: dict[str, WaitingCounts] = field(default_factory=dict)
    _lately: Lately = field(default_factory=Lately)
    _meters: Callable[[], Meters] = Meters
    _read: Meters = field(default_factory=Meters)

    def __post_init__(self) -> None:
        self._interval = self._open(0.0)

    def measure(self, meters: Callable[[], Meters]) -> None:
        """Set the function that reads the meters."""
        self._meters = meters

    def answer(
        self, instance: Instance, routes: ModelRoutes, latency_s: float, usage: Usage | None = None
    ) -> None:
        """Count an answer.

        Args:
            instance: Instance that answered.
            routes: Routes of its model, with its objectives.
            latency_s: Time from its arrival at the router to its answer, s.
            usage: Its tokens, if it is a text.
        """
        interval = self._interval
        if usage is not None:
            seen = usage._replace(first_token_s=usage.first_token_s + self.client_s)
            late = not routes.in_time(latency_s + self.client_s, seen)
            interval.texts[instance.model].add(seen, late=late)
            before = self.tokens.get(instance.model, Tokens())
            self.tokens[instance.model] = Tokens(
                before.input + usage.input_tokens,
                before.output + usage.output_tokens,
                before.input_squares + usage.input_tokens**2,
            )
        interval.latency_s[instance.model].append(latency_s + self.client_s)
        interval.answers[instance.model, instance.variant] += 1
        self._lately.by_variant[instance.model][instance.variant] += 1
        self._lately.latency_s[instance.model].append(latency_s)
        if not routes.in_time(latency_s, usage):
            self._lately.late[instance.model] += 1

    def fail(self, model: str, reason: str) -> None:
        """Count a request that was refused or failed."""
        self._interval.failures[model, reason] += 1

    def lately(self) -> Lately:
        """Return the requests that ended since the last call."""
        ended, self._lately = self._lately, Lately()
        return ended

    def skip(self, now_s: float) -> None:
        """Skip time from now on."""
        self._interval.skip_s = now_s

    def turn(self, now_s: float) -> None:
        """End the interval, and begin another one that is simulated."""
        interval = self._interval
        interval.end_s = now_s
        interval.skip_s = min(interval.skip_s, now_s)
        interval.arrived = self.arrived(interval.begin_s, now_s)
        interval.skipped = self.arrived(interval.skip_s, now_s)
        reading = self._meters()
        interval.spent, self._read = reading - self._read, reading
        if interval.end_s > interval.begin_s:
            self.intervals.append(interval)
        self._interval = self._open(now_s)

    def intensity_at(self, zone: str, at_s: float) -> float:
        """Return the intensity of a zone at a time that has passed, gCO2e/kWh."""
        at = bisect_right(self.intervals, at_s, key=lambda each: each.begin_s)
        if at_s >= self._interval.begin_s or not at:
            return self.intensity_gco2e_per_kwh[zone]
        return self.intervals[at - 1].intensity_gco2e_per_kwh[zone]

    @property
    def began_s(self) -> float:
        """Start of the current interval, virtual time, s."""
        return self._interval.begin_s

    def arrived(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Return the number of requests that arrive in [begin_s, end_s), by model."""
        bounds = (begin_s, end_s)
        counts = {name: np.searchsorted(at_s, bounds) for name, at_s in self.arrivals.items()}
        return {name: int(last - first) for name, (first, last) in counts.items()}

    def per_second(self, seconds: range, start_s: float) -> dict[str, tuple[int, ...]]:
        """Return the requests that arrive in each second, by model.

        Args:
            seconds: Unix seconds.
            start_s: Unix time at which virtual time began.
        """
        bounds = np.arange(seconds.start, seconds.stop + 1) - start_s
        return {
            name: tuple(np.diff(np.searchsorted(at_s, bounds)).tolist())
            for name, at_s in self.arrivals.items()
        }

    def _open(self, now_s: float) -> SampledInterval:
        return SampledInterval(
            now_s, np.inf, np.inf, self.table, dict(self.intensity_gco2e_per_kwh)
        )

"""Counters of a model's requests; each costs an addition or two per request."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from operator import add, sub
from typing import Final, NamedTuple, Self

from services.kit.request_cost import Usage
from services.kit.sketch import Sketch

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of a histogram's buckets, s; one more bucket has none."""


class _Summable:
    """Counters that add up, field by field."""

    __slots__: tuple[str, ...] = ()

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, each) + getattr(other, each) for each in self.__slots__))


@dataclass(slots=True)
class Durations(_Summable):
    """Events and the time that they took together. Attributes: count, total_s."""

    count: int = 0
    total_s: float = 0.0

    def add(self, duration_s: float, count: int = 1) -> None:
        """Count `count` events of this duration each."""
        self.count += count
        self.total_s += duration_s * count


_SAMPLED: Final = frozenset("13579bdf")
"""Last digits of a traceparent whose trace is recorded."""


class Exemplar(NamedTuple):
    """A duration whose trace is recorded. Attributes: duration_s, traceparent (W3C)."""

    duration_s: float
    traceparent: str


@dataclass(slots=True)
class Histogram:
    """Durations in the buckets of `BOUNDS_S`, bounds included.

    Attributes:
        counts: One per bucket, the unbounded one last.
        total_s: Sum of the durations.
        exemplars: The newest of each bucket, by its index, of those that are traced.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def add(self, duration_s: float, traceparent: str = "") -> None:
        """Count one duration, s, of a request with this trace context."""
        bucket = bisect_left(BOUNDS_S, duration_s)
        self.counts[bucket] += 1
        self.total_s += duration_s
        if traceparent and traceparent[-1] in _SAMPLED:
            self.exemplars[bucket] = Exemplar(duration_s, traceparent)

    def __add__(self, other: Histogram) -> Histogram:
        counts = list(map(add, self.counts, other.counts))
        return Histogram(counts, self.total_s + other.total_s, self.exemplars | other.exemplars)


@dataclass(slots=True)
class TokenStats(_Summable):
    """Tokens of a variant that generates text.

    Attributes:
        input_tokens: Tokens of the prompts.
        cached_tokens: Of those, what servers had cached.
        input_squares: Sum of the squares of the prompts' tokens.
        output_tokens: Tokens generated.
        first: Time from arrival to the first token, of answers that came token by token.
        between: Mean time from one token to the next, of answers that have two.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first: Histogram = field(default_factory=Histogram)
    between: Histogram = field(default_factory=Histogram)
    input_squares: float = 0.0

    def add(self, usage: Usage) -> None:
        """Count one answer."""
        self.input_tokens += usage.input_tokens
        self.cached_tokens += usage.cached_tokens
        self.input_squares += float(usage.input_tokens) ** 2
        self.output_tokens += usage.output_tokens
        if usage.first_token_s:
            self.first.add(usage.first_token_s)
            if usage.output_tokens > 1:
                self.between.add(usage.token_s)


@dataclass(slots=True)
class VariantStats(_Summable):
    """Counters of one variant, or of several together.

    Attributes:
        in_time: Answers within the SLO.
        late: Answers beyond it.
        latency: Time from arrival to answer.
        queue: Waiting time of it, in the router and in the worker.
        compute: Execution time of the request's batch.
        accuracy_sum: Sum of the stated accuracies.
        energy_j, idle_energy_j: As workers attributed them.
        carbon_gco2e: Carbon of the active energy, as far as the intensity was known.
        carbon_total_gco2e: Carbon of the idle energy, too.
        tokens: Tokens of text; no input tokens: no answer reported any.
    """

    in_time: int = 0
    late: int = 0
    latency: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    compute: Histogram = field(default_factory=Histogram)
    accuracy_sum: float = 0.0
    energy_j: float = 0.0
    idle_energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    carbon_total_gco2e: float = 0.0
    tokens: TokenStats = field(default_factory=TokenStats)

    @property
    def answered(self) -> int:
        """Number of answers."""
        return self.in_time + self.late

    @property
    def accuracy(self) -> float:
        """Mean stated accuracy of the answers; 0 before the first."""
        return self.accuracy_sum / max(self.answered, 1)


MAX_SECONDS: Final = 60
"""Seconds that are counted apart until they are reported."""


class SecondCounts:
    """Events by second of the wall clock, of the latest `MAX_SECONDS` that have any."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, second: int) -> None:
        """Count an event."""
        counts = self._counts
        if second in counts:
            counts[second] += 1
            return
        counts[second] = 1
        if len(counts) > MAX_SECONDS:
            del counts[next(iter(counts))]

    def take(self, seconds: range) -> list[int]:
        """Return the events of each second, and drop them and all earlier ones."""
        found = [self._counts.get(second, 0) for second in seconds]
        self._counts = {at: count for at, count in self._counts.items() if at >= seconds.stop}
        return found


MAX_POSITIONS: Final = 256
"""Positions that are counted apart; those behind share the last one, so that memory is bounded."""


@dataclass(slots=True)
class PositionStats:
    """Responses at one position.

    Attributes:
        success: Responses.
        empty: Answers that ended here without a further response.
        fail: Answers that ended here in an error.
    """

    success: Durations = field(default_factory=Durations)
    empty: Durations = field(default_factory=Durations)
    fail: Durations = field(default_factory=Durations)


class StatsWindow(NamedTuple):
    """Counts in a window of time.

    Attributes:
        arrivals: Requests that arrived, refused ones included.
        accepted: Requests that were not refused.
        answered: Requests answered.
        failed: Requests that ended in an error that was no client's.
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

    def since(self, earlier: StatsWindow) -> StatsWindow:
        """Return the counts between two moments."""
        return StatsWindow._make(map(sub, self, earlier))

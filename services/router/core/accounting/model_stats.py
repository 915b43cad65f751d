"""Statistics of a model's requests: counts, times and energy, since start and since last rolled.

Every number only grows, and an answer costs some twenty additions: rates, windows and quantiles
are computed when they are read.
"""

from collections import Counter, defaultdict

from services.kit.request_cost import Cost
from services.kit.sketch import Buckets, Sketch
from services.router.core.accounting.counters import (
    Durations,
    ResponseStats,
    StatsWindow,
    TokenStats,
    VariantStats,
)
from services.router.core.accounting.service_level import (
    NOT_OURS,
    WINDOWS_S,
    CounterHistory,
    ServiceLevel,
    service_level,
)

_LATENCIES_S = Buckets.spanning(1e-6, 1e4, growth=1.01 / 0.99)  # quantiles within 1 %


class ModelStats:
    """Counters of one model.

    Attributes:
        slo_latency_s: Answers that take longer are late.
        slo_percentile: Percent of the requests that must be in time.
        arrivals, accepted, retried: Numbers of requests.
        statuses: Requests that ended in an error, by status.
        variants: Every variant that ever answered.
        predictions: Predictions of answers' lengths that came, by source.
        fail_s: Time that failed requests took, added up.
        unclaimed_j, unclaimed_gco2e: Energy and carbon of work that failed, or whose caller had
            gone by its end.
        last_answer_s: Monotonic time of the newest answer, or None.
        responses: Responses of a decoupled model, by position.
    """

    def __init__(
        self,
        slo_latency_s: float,
        slo_percentile: float = 95.0,
        windows_s: tuple[float, ...] = WINDOWS_S,
    ) -> None:
        self.slo_latency_s = slo_latency_s
        self.slo_percentile = slo_percentile
        self.arrivals = self.accepted = self.retried = 0
        self.statuses: dict[str, int] = {}
        self.variants: defaultdict[str, VariantStats] = defaultdict(VariantStats)
        self.predictions: defaultdict[str, Durations] = defaultdict(Durations)
        self.fail_s = self.unclaimed_j = self.unclaimed_gco2e = 0.0
        self.last_answer_s: float | None = None
        self.responses = ResponseStats()
        self._ended_s = float("-inf")
        self._latencies = Sketch(_LATENCIES_S)
        self._by_size: defaultdict[int, Durations] = defaultdict(Durations)
        self._history = CounterHistory(windows_s)
        self._rolled = self.since_start()

    # ---- counting ------------------------------------------------------------------------------

    def answer(  # noqa: PLR0913 - what is counted of an answer
        self,
        variant: VariantStats,
        now_s: float,
        *,
        latency_s: float,
        queue_s: float,
        accuracy: float,
        in_time: bool | None = None,
        traceparent: str = "",
    ) -> None:
        """Count an answer.

        Args:
            variant: Counters of the variant that gave it.
            now_s: Monotonic time.
            latency_s: Time from arrival to answer.
            queue_s: Waiting time of it, in the router and in the worker.
            accuracy: Stated accuracy of the instance.
            in_time: Whether it met every objective; None: whether its latency did.
            traceparent: Trace context of the request, or "".
        """
        self._sample(now_s)
        self.last_answer_s = now_s
        if latency_s <= self.slo_latency_s if in_time is None else in_time:
            variant.in_time += 1
        else:
            variant.late += 1
        variant.accuracy_sum += accuracy
        variant.latency.add(latency_s, traceparent)
        variant.queue.add(queue_s)
        self._latencies.add(latency_s)

    def cost(self, variant: VariantStats, cost: Cost, carbon_gco2e: float) -> None:
        """Count an answer's cost; `carbon_gco2e` is 0 where it is not known."""
        variant.energy_j += cost.energy_j
        variant.idle_energy_j += cost.idle_energy_j
        variant.carbon_gco2e += carbon_gco2e
        variant.compute.add(cost.compute_s)
        if cost.usage is not None:
            variant.tokens = variant.tokens or TokenStats()
            variant.tokens.add(cost.usage)
        self._by_size[cost.batch_size].add(cost.compute_s, cost.items)

    def failure(self, status: str, now_s: float, latency_s: float) -> None:
        """Count a request that ended in an error after `latency_s`."""
        self._sample(now_s)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.fail_s += latency_s

    # ---- since start ---------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Requests that have arrived and not ended."""
        return max(self.arrivals - self._answered - sum(self.statuses.values()), 0)

    @property
    def success(self) -> Durations:
        """Answers, and their latencies."""
        return Durations(self._answered, sum(v.latency.total_s for v in self._variants))

    @property
    def fail(self) -> Durations:
        """Failed requests, and the time they took."""
        return Durations(sum(self.statuses.values()), self.fail_s)

    @property
    def queue(self) -> Durations:
        """Answers, and their waiting times."""
        return Durations(self._answered, sum(v.queue.total_s for v in self._variants))

    @property
    def compute(self) -> Durations:
        """Answers, and the execution times of their batches."""
        return Durations(self._answered, sum(v.compute.total_s for v in self._variants))

    @property
    def cache_hits(self) -> Durations:
        """Predictions of lengths from the predictor's cache, and the time they took."""
        return self._predicted("exact", "semantic")

    @property
    def cache_misses(self) -> Durations:
        """Other predictions of lengths, and the time they took."""
        return self._predicted("model", "prior")

    @property
    def batches(self) -> dict[int, Durations]:
        """By size of the batch: the items in such batches, and the batch's time for each."""
        return dict(self._by_size)

    @property
    def items(self) -> int:
        """Items in the answered requests; one in each whose worker reported no cost."""
        reported = sum(sum(variant.compute.counts) for variant in self._variants)
        return self._answered - reported + sum(batch.count for batch in self.batches.values())

    @property
    def executions(self) -> int:
        """Batches that ran: an item in a batch of n is 1/n of one."""
        return round(sum(batch.count / size for size, batch in self.batches.items()))

    @property
    def energy_j(self) -> float:
        """Active energy of the answers."""
        return sum(variant.energy_j for variant in self._variants)

    @property
    def carbon_gco2e(self) -> float:
        """Carbon of the active energy, as far as the intensity was known."""
        return sum(variant.carbon_gco2e for variant in self._variants)

    @property
    def input_tokens(self) -> int:
        """Tokens of the answered prompts."""
        return sum(v.tokens.input_tokens for v in self._variants if v.tokens)

    @property
    def output_tokens(self) -> int:
        """Tokens generated."""
        return sum(v.tokens.output_tokens for v in self._variants if v.tokens)

    @property
    def accuracy(self) -> float:
        """Mean stated accuracy of the answers; 0 before the first."""
        return sum(v.accuracy_sum for v in self._variants) / max(self._answered, 1)

    def since_start(self) -> StatsWindow:
        """Return the counts since start."""
        variants = dict(self.variants)
        return StatsWindow(
            arrivals=self.arrivals,
            accepted=self.accepted,
            answered=self._answered,
            failed=sum(self.statuses.values()),
            retried=self.retried,
            late=sum(variant.late for variant in variants.values()),
            by_variant=Counter({name: variant.answered for name, variant in variants.items()}),
            latency=self._latencies.copy(),
        )

    # ---- windows -------------------------------------------------------------------------------

    def roll(self) -> StatsWindow:
        """Return the counts since the last call, and begin a new window."""
        total = self.since_start()
        window, self._rolled = total.since(self._rolled), total
        return window

    def service_levels(self, now_s: float) -> list[ServiceLevel]:
        """Return how the objective was kept over each window that ends now."""
        levels = []
        for window_s in self._history.windows_s:
            good, bad, *_ = self._grown(window_s, now_s)
            levels.append(service_level(window_s, good, bad, self.slo_percentile))
        return levels

    def served(self, now_s: float) -> dict[str, float]:
        """Return each variant's share of the answers, over the shortest window."""
        _, _, _, *answered = self._grown(self._shortest_s, now_s)
        total = sum(answered)
        return {
            name: count / total if total else 0.0
            for name, count in zip(list(self.variants), answered, strict=False)
        }

    def rate_rps(self, now_s: float, age_s: float) -> float:
        """Return the requests that ended per second, over the shortest window.

        Args:
            now_s: Monotonic time.
            age_s: How long requests have been counted.
        """
        good, bad, *_ = self._grown(self._shortest_s, now_s)
        return (good + bad) / max(min(self._shortest_s, age_s), 1.0)

    def output_tokens_per_s(self, now_s: float, age_s: float) -> float:
        """Return the tokens of answers that ended, per second; arguments as of `rate_rps`."""
        _, _, tokens, *_ = self._grown(self._shortest_s, now_s)
        return tokens / max(min(self._shortest_s, age_s), 1.0)

    @property
    def good_and_bad(self) -> tuple[int, int]:
        """Requests answered in time, and those that were not; errors of clients are neither."""
        variants, statuses = self._variants, list(self.statuses.items())
        ours = sum(count for status, count in statuses if status not in NOT_OURS)
        late = sum(variant.late for variant in variants)
        return sum(variant.in_time for variant in variants), late + ours

    # ---- inside --------------------------------------------------------------------------------

    @property
    def _variants(self) -> list[VariantStats]:
        return list(self.variants.values())  # a copy: another thread scrapes

    @property
    def _shortest_s(self) -> float:
        return min(self._history.windows_s)

    @property
    def _answered(self) -> int:
        return sum(variant.answered for variant in self._variants)

    def _predicted(self, *sources: str) -> Durations:
        found = [each for source, each in list(self.predictions.items()) if source in sources]
        return Durations(sum(each.count for each in found), sum(each.total_s for each in found))

    def _sample(self, now_s: float) -> None:
        """Keep the counters for the windows when that is due, before a request is counted."""
        if now_s >= self._history.due_s:
            self._history.sample(now_s, self._ended_s, self._counts())
        self._ended_s = now_s

    def _counts(self) -> tuple[int, ...]:
        answered = (variant.answered for variant in self._variants)
        return (*self.good_and_bad, self.output_tokens, *answered)

    def _grown(self, window_s: float, now_s: float) -> tuple[int, ...]:
        return self._history.within(window_s, now_s, self._ended_s, self._counts())

"""Statistics of a model's requests: counts, times and energy, since start and since last rolled.

Every number only grows, and an answer costs some twenty additions: rates, windows and quantiles
are computed when they are read.
"""

from collections import Counter, defaultdict

from services.kit.sketch import Buckets, Sketch
from services.router.core.accounting.counters import (
    MAX_POSITIONS,
    Durations,
    PositionStats,
    SecondCounts,
    StatsWindow,
    VariantStats,
)
from services.router.core.accounting.receipt_watchers import Receipt
from services.router.core.accounting.service_level import (
    NOT_OURS,
    WINDOWS_S,
    CounterHistory,
    ServiceLevel,
    service_level,
)
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result

_LATENCIES_S = Buckets.spanning(1e-6, 1e4, growth=1.01 / 0.99)  # quantiles within 1 %


class ModelStats:
    """Counters of one model.

    Attributes:
        arrivals, accepted, retried: Numbers of requests.
        statuses: Requests that ended in an error, by status.
        variants: Every variant that ever answered.
        predictions: Predictions of answers' lengths that came, by source.
        fail_s: Time that failed requests took, added up; errors of clients are none.
        unclaimed_j: Energy of work that failed, or whose caller had gone by its end.
        last_answer_s: Monotonic time of the newest answer, or None.
        responses: Responses of a decoupled model, by position, from 0.
        per_second: Arrivals by second, of those that are not reported yet.
    """

    def __init__(self, windows_s: tuple[float, ...] = WINDOWS_S) -> None:
        self.arrivals = self.accepted = self.retried = 0
        self.statuses: dict[str, int] = {}
        self.variants: defaultdict[str, VariantStats] = defaultdict(VariantStats)
        self.predictions: defaultdict[str, Durations] = defaultdict(Durations)
        self.fail_s = self.unclaimed_j = 0.0
        self.last_answer_s: float | None = None
        self.responses: defaultdict[int, PositionStats] = defaultdict(PositionStats)
        self.per_second = SecondCounts()
        self._latencies = Sketch(_LATENCIES_S)
        self._by_size: defaultdict[int, Durations] = defaultdict(Durations)
        self._history = CounterHistory(windows_s)
        self._rolled = self.since_start()

    # ---- counting ------------------------------------------------------------------------------

    def arrive(self, second: int) -> None:
        """Count an arrival in a second of the wall clock."""
        self.arrivals += 1
        self.per_second.add(second)

    def answer(self, receipt: Receipt, *, in_time: bool, traceparent: str = "") -> None:
        """Count an answer.

        Args:
            receipt: What it took.
            in_time: Whether it met every objective.
            traceparent: Trace context of the request, or "".
        """
        variant, now_s = self.variants[receipt.instance.variant], receipt.answered_s
        self._sample(now_s)
        self.last_answer_s = now_s
        if in_time:
            variant.in_time += 1
        else:
            variant.late += 1
        variant.accuracy_sum += receipt.instance.accuracy
        variant.latency.add(receipt.latency_s, traceparent)
        variant.queue.add(receipt.queue_s)
        self._latencies.add(receipt.latency_s)
        cost = receipt.cost
        if cost is None:
            return
        variant.energy_j += cost.energy_j
        variant.idle_energy_j += cost.idle_energy_j
        variant.carbon_gco2e += receipt.carbon_gco2e or 0.0
        variant.carbon_total_gco2e += receipt.carbon_total_gco2e or 0.0
        variant.compute.add(cost.compute_s)
        if cost.usage is not None:
            variant.tokens.add(cost.usage)
        items = self._by_size[cost.batch_size]
        items.count += cost.items
        items.total_s += cost.compute_s * cost.items

    def failure(self, status: str, now_s: float, latency_s: float) -> None:
        """Count a request that ended in an error after `latency_s`."""
        self._sample(now_s)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status not in NOT_OURS:
            self.fail_s += latency_s

    def response(self, pending: PendingRequest, result: Result) -> None:
        """Count the newest response, with the time since the one before or the assignment."""
        if result.status in NOT_OURS:
            return
        at = self.responses[min(pending.responses, MAX_POSITIONS) - 1]
        counted = at.fail if result.status else at.success if result.response else at.empty
        counted.add(pending.response_gap_s)

    # ---- since start ---------------------------------------------------------------------------

    @property
    def total(self) -> VariantStats:
        """Counters of all variants together."""
        return sum(list(self.variants.values()), VariantStats())  # a copy: another thread scrapes

    @property
    def pending(self) -> int:
        """Requests that have arrived and not ended."""
        return max(self.arrivals - self.total.answered - sum(self.statuses.values()), 0)

    @property
    def fail(self) -> Durations:
        """Failed requests, and the time they took: neither cancelled ones nor clients' errors."""
        statuses = list(self.statuses.items())  # a copy: another thread scrapes
        count = sum(count for status, count in statuses if status not in NOT_OURS)
        return Durations(count, self.fail_s)

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
        total = self.total
        reported = sum(total.compute.counts)
        return total.answered - reported + sum(batch.count for batch in self.batches.values())

    @property
    def executions(self) -> int:
        """Batches that ran: an item in a batch of n is 1/n of one."""
        return round(sum(batch.count / size for size, batch in self.batches.items()))

    def since_start(self) -> StatsWindow:
        """Return the counts since start."""
        variants, total = dict(self.variants), self.total
        return StatsWindow(
            arrivals=self.arrivals,
            accepted=self.accepted,
            answered=total.answered,
            failed=self.fail.count,
            retried=self.retried,
            late=total.late,
            by_variant=Counter({name: variant.answered for name, variant in variants.items()}),
            latency=self._latencies.copy(),
        )

    # ---- windows -------------------------------------------------------------------------------

    def roll(self) -> StatsWindow:
        """Return the counts since the last call, and begin a new window."""
        total = self.since_start()
        window, self._rolled = total.since(self._rolled), total
        return window

    def service_levels(self, now_s: float, percentile: float) -> list[ServiceLevel]:
        """Return how an objective was kept over each window that ends now.

        Args:
            now_s: Monotonic time.
            percentile: Percent of the requests that must be in time.
        """
        levels = []
        for window_s in self._history.windows_s:
            good, bad, *_ = self._grown(window_s, now_s)
            levels.append(service_level(window_s, good, bad, percentile))
        return levels

    def served(self, now_s: float) -> dict[str, float]:
        """Return each variant's share of the answers, over the shortest window."""
        _, _, _, *answered = self._grown(self._shortest_s, now_s)
        total = sum(answered)
        return {
            name: count / total if total else 0.0
            for name, count in zip(list(self.variants), answered, strict=False)
        }

    def rates(self, now_s: float, age_s: float) -> tuple[float, float]:
        """Return requests that ended, and tokens of their answers, over the shortest window, 1/s.

        Args:
            now_s: Monotonic time.
            age_s: How long requests have been counted.
        """
        good, bad, tokens, *_ = self._grown(self._shortest_s, now_s)
        window_s = max(min(self._shortest_s, age_s), 1.0)
        return (good + bad) / window_s, tokens / window_s

    @property
    def good_and_bad(self) -> tuple[int, int]:
        """Requests answered in time, and those that were not; errors of clients are neither."""
        total = self.total
        return total.in_time, total.late + self.fail.count

    # ---- inside --------------------------------------------------------------------------------

    @property
    def _shortest_s(self) -> float:
        return min(self._history.windows_s)

    def _predicted(self, *sources: str) -> Durations:
        found = [each for source, each in list(self.predictions.items()) if source in sources]
        return sum(found, Durations())

    def _sample(self, now_s: float) -> None:
        """Keep the counters for the windows when that is due, before a request is counted."""
        if now_s >= self._history.due_s:
            self._history.sample(now_s, self._counts())
        self._history.counted_s = now_s

    def _counts(self) -> tuple[int, ...]:
        answered = [variant.answered for variant in list(self.variants.values())]
        return (*self.good_and_bad, self.total.tokens.output_tokens, *answered)

    def _grown(self, window_s: float, now_s: float) -> tuple[int, ...]:
        return self._history.within(window_s, now_s, self._counts())

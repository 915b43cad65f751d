"""What became of a model's requests: counts, times, energy; since start and since last asked.

Every number only grows, and an answer costs some twenty additions: whoever wants a rate, a window
or a quantile pays for it when asking.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from services.router.core.accounting.histogram import Sketch
from services.router.core.accounting.response_stats import ResponseStats
from services.router.core.accounting.service_level import (
    NOT_OURS,
    WINDOWS_S,
    CounterHistory,
    ServiceLevel,
    service_level,
)
from services.router.core.accounting.stats_window import StatsWindow
from services.router.core.accounting.variant_stats import TokenStats, VariantStats
from services.router.core.worker_port import Cost


@dataclass(frozen=True, slots=True)
class Span:
    """Times added up. Attributes: count, total_s."""

    count: int
    total_s: float


class _Batches:
    """Batches of one size.

    Attributes:
        items: Of the answered requests in them.
        compute_s: Their time, once per item.
    """

    __slots__ = ("compute_s", "items")

    def __init__(self) -> None:
        self.items = 0
        self.compute_s = 0.0


class ModelStats:
    """The account of one model.

    Attributes:
        slo_latency_s: What is late.
        slo_percentile: Percent of the requests that shall not be.
        arrivals, accepted, retried: Of requests.
        statuses: Requests that ended in an error, by status.
        variants: By variant that ever answered.
        foretold: Predictions of answers' lengths that came, by source.
        fail_s: Time that failed requests took, added up.
        unclaimed_j, unclaimed_gco2e: Of work that failed, or whose caller had gone by its end.
        last_answer_s: Monotonic time of the newest answer, or None.
        responses: Of a decoupled model, by place.
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
        self.variants: dict[str, VariantStats] = {}
        self.predictions: dict[str, Span] = {}
        self.fail_s = self.unclaimed_j = self.unclaimed_gco2e = 0.0
        self.last_answer_s: float | None = None
        self.responses = ResponseStats()
        self._ended_s = float("-inf")
        self._sketch = Sketch()
        self._by_size: dict[int, _Batches] = {}
        self._trail = CounterHistory(windows_s)
        self._rolled = self.since_start()

    # ---- counting ------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Count a request for this model."""
        self.arrivals += 1

    def accept(self) -> None:
        """Count a request that was taken."""
        self.accepted += 1

    def retry(self) -> None:
        """Count a request that was given to one more worker."""
        self.retried += 1

    def variant(self, name: str) -> VariantStats:
        """Return a variant's account, opened where there is none."""
        return self.variants.setdefault(name, VariantStats())

    def answer(
        self,
        variant: VariantStats,
        now_s: float,
        *,
        latency_s: float,
        queue_s: float,
        accuracy: float,
    ) -> None:
        """Count an answer.

        Args:
            variant: The account of the variant that gave it.
            now_s: Monotonic time.
            latency_s: From arrival to answer.
            queue_s: Of it: waiting, here and in the worker.
            accuracy: As stated for who gave it.
        """
        if now_s >= self._trail.due_s:
            self._trail.note(now_s, self._ended_s, self._counts())
        self._ended_s = self.last_answer_s = now_s
        if latency_s > self.slo_latency_s:
            variant.late += 1
        else:
            variant.in_time += 1
        variant.accuracy_sum += accuracy
        variant.latency.add(latency_s)
        variant.queue.add(queue_s)
        self._sketch.add(latency_s)

    def cost(self, variant: VariantStats, cost: Cost, carbon_gco2e: float) -> None:
        """Count what an answer cost; `carbon_gco2e` is 0 where it is not known."""
        variant.energy_j += cost.energy_j
        variant.idle_energy_j += cost.idle_energy_j
        variant.carbon_gco2e += carbon_gco2e
        variant.compute.add(cost.compute_s)
        if cost.usage is not None:
            variant.tokens = variant.tokens or TokenStats()
            variant.tokens.add(cost.usage)
        batches = self._by_size.get(cost.batch_size)
        if batches is None:
            batches = self._by_size[cost.batch_size] = _Batches()
        batches.items += cost.items
        batches.compute_s += cost.compute_s * cost.items

    def failure(self, status: str, now_s: float, latency_s: float) -> None:
        """Count a request that ended in an error after so many seconds."""
        if now_s >= self._trail.due_s:
            self._trail.note(now_s, self._ended_s, self._counts())
        self._ended_s = now_s
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.fail_s += latency_s

    def foretell(self, source: str, took_s: float) -> None:
        """Count a prediction of an answer's length, and the time it took."""
        before = self.predictions.get(source, Span(0, 0.0))
        self.predictions[source] = Span(before.count + 1, before.total_s + took_s)

    def unclaimed(self, energy_j: float, carbon_gco2e: float) -> None:
        """Count what was spent on work that no answer tells of."""
        self.unclaimed_j += energy_j
        self.unclaimed_gco2e += carbon_gco2e

    # ---- since start ---------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Requests that have arrived and not ended."""
        return max(self.arrivals - self._answered - sum(self.statuses.values()), 0)

    @property
    def success(self) -> Span:
        """Answers, and their latencies added up."""
        return Span(self._answered, sum(v.latency.total_s for v in self._variants))

    @property
    def fail(self) -> Span:
        """Failed requests, and the time they took."""
        return Span(sum(self.statuses.values()), self.fail_s)

    @property
    def queue(self) -> Span:
        """Answers, and their waiting added up."""
        return Span(self._answered, sum(v.queue.total_s for v in self._variants))

    @property
    def compute(self) -> Span:
        """Answers, and the times of the batches they were in."""
        return Span(self._answered, sum(v.compute.total_s for v in self._variants))

    @property
    def cache_hits(self) -> Span:
        """Lengths of answers that the predictor's cache foretold, and their times added up."""
        return self._predictions("exact", "semantic")

    @property
    def cache_misses(self) -> Span:
        """Lengths of answers that were foretold otherwise, and their times added up."""
        return self._predictions("model", "prior")

    @property
    def batches(self) -> dict[int, Span]:
        """By size of the batch: the items in such batches, and the batch's time for each."""
        return {
            size: Span(batches.items, batches.compute_s)
            for size, batches in list(self._by_size.items())
        }

    @property
    def items(self) -> int:
        """Items in the answered requests; one in each whose worker did not say."""
        told = sum(sum(variant.compute.counts) for variant in self._variants)
        return self._answered - told + sum(span.count for span in self.batches.values())

    @property
    def executions(self) -> int:
        """Batches that ran: an item in a batch of n is 1/n of one."""
        return round(sum(span.count / size for size, span in self.batches.items()))

    @property
    def energy_j(self) -> float:
        """Active energy of the answered."""
        return sum(variant.energy_j for variant in self._variants)

    @property
    def carbon_gco2e(self) -> float:
        """Its carbon, as far as the intensity was known."""
        return sum(variant.carbon_gco2e for variant in self._variants)

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompts that were answered."""
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
            latency=self._sketch.copy(),
        )

    # ---- of late -------------------------------------------------------------------------------

    def roll(self) -> StatsWindow:
        """Return the counts since the last roll, and begin a new window."""
        total = self.since_start()
        window, self._rolled = total.since(self._rolled), total
        return window

    def service_levels(self, now_s: float) -> list[ServiceLevel]:
        """Return how the objective was kept over each window that ends now."""
        levels = []
        for window_s in self._trail.windows_s:
            good, bad, *_ = self._grown(window_s, now_s)
            levels.append(service_level(window_s, good, bad, self.slo_percentile))
        return levels

    def served(self, now_s: float) -> dict[str, float]:
        """Return the share of the answers that each variant gave, over the shortest window."""
        _, _, *answered = self._grown(min(self._trail.windows_s), now_s)
        total = sum(answered)
        return {
            name: count / total if total else 0.0
            for name, count in zip(list(self.variants), answered, strict=False)
        }

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
    def _answered(self) -> int:
        return sum(variant.answered for variant in self._variants)

    def _predictions(self, *sources: str) -> Span:
        found = [span for source, span in list(self.predictions.items()) if source in sources]
        return Span(sum(span.count for span in found), sum(span.total_s for span in found))

    def _counts(self) -> tuple[int, ...]:
        return (*self.good_and_bad, *(variant.answered for variant in self._variants))

    def _grown(self, window_s: float, now_s: float) -> tuple[int, ...]:
        return self._trail.within(window_s, now_s, self._ended_s, self._counts())

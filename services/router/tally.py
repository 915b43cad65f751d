"""What became of a model's requests: counts, times, energy; since start and since last asked.

Latencies go into a DDSketch (quantiles within 1 %), never into a list: memory does not grow with
load, and the window's sketch merges into the one since start without loss.
Source: Masson, Rim, Lee, "DDSketch", VLDB 2019.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ddsketch import LogCollapsingLowestDenseDDSketch

from services.router.receipts import Receipt


def _sketch() -> LogCollapsingLowestDenseDDSketch:
    return LogCollapsingLowestDenseDDSketch(relative_accuracy=0.01, bin_limit=2048)


@dataclass(slots=True)
class Window:
    """Counts of one stretch of time.

    Attributes:
        arrivals: Requests that arrived, refused ones included.
        accepted: Requests that were not refused.
        answered: Requests answered.
        failed: Requests that ended in an error.
        retried: Times that a request was given to another worker.
        late: Answered, but later than the SLO.
        by_variant: Answered, by the variant that did.
        latency: Sketch of the latencies of the answered, s.
    """

    arrivals: int = 0
    accepted: int = 0
    answered: int = 0
    failed: int = 0
    retried: int = 0
    late: int = 0
    by_variant: Counter[str] = field(default_factory=Counter)
    latency: LogCollapsingLowestDenseDDSketch = field(default_factory=_sketch)

    def quantiles_s(self, percentiles: Iterable[float]) -> dict[float, float]:
        """Return latencies by percentile (0..100), s; empty where nothing was answered."""
        if not self.latency.count:
            return {}
        return {p: self.latency.get_quantile_value(p / 100) or 0.0 for p in percentiles}

    def absorb(self, other: Window) -> None:
        """Add another stretch of time to this one."""
        self.arrivals += other.arrivals
        self.accepted += other.accepted
        self.answered += other.answered
        self.failed += other.failed
        self.retried += other.retried
        self.late += other.late
        self.by_variant.update(other.by_variant)
        self.latency.merge(other.latency)


@dataclass(slots=True)
class Span:
    """Times added up. Attributes: count, total_s."""

    count: int = 0
    total_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Add one duration, s."""
        self.count += 1
        self.total_s += duration_s


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer.

    Attributes:
        latency_s: From arrival to answer.
        queue_s: Of it: waiting, here and in the worker.
        compute_s: Of it: its batch executing.
        batch_size: Items in its batch.
        variant: Who answered.
        accuracy: Its stated accuracy.
        receipt: What it cost, or None where the worker did not say.
    """

    latency_s: float
    queue_s: float
    compute_s: float
    batch_size: int
    variant: str
    accuracy: float
    receipt: Receipt | None


class Tally:
    """The account of one model.

    Attributes:
        success, fail, queue, compute: Times of requests, as Triton's statistics name them.
        batches: By batch size: requests that were in such batches, with their batches' times.
        energy_j: Active energy of the answered.
        carbon_gco2e: Its carbon, as far as the intensity was known.
        last_answer_s: Monotonic time of the newest answer, or None.
    """

    def __init__(self, slo_latency_s: float) -> None:
        self.slo_latency_s = slo_latency_s
        self.success, self.fail, self.queue, self.compute = Span(), Span(), Span(), Span()
        self.batches: dict[int, Span] = {}
        self.energy_j = 0.0
        self.carbon_gco2e = 0.0
        self.last_answer_s: float | None = None
        self._accuracy_sum = 0.0
        self._past = Window()
        self._window = Window()

    def arrive(self) -> None:
        """Count a request for this model."""
        self._window.arrivals += 1

    def accept(self) -> None:
        """Count a request that was taken."""
        self._window.accepted += 1

    def retry(self) -> None:
        """Count a request that was given to one more worker."""
        self._window.retried += 1

    def answer(self, answered: Answered, now_s: float) -> None:
        """Count an answer."""
        window = self._window
        window.answered += 1
        window.by_variant[answered.variant] += 1
        window.late += answered.latency_s > self.slo_latency_s
        window.latency.add(answered.latency_s)
        self.success.add(answered.latency_s)
        self.queue.add(answered.queue_s)
        self.compute.add(answered.compute_s)
        self.batches.setdefault(answered.batch_size, Span()).add(answered.compute_s)
        self._accuracy_sum += answered.accuracy
        self.last_answer_s = now_s
        if answered.receipt is not None:
            self.energy_j += answered.receipt.energy_j
            self.carbon_gco2e += answered.receipt.carbon_gco2e or 0.0

    def failure(self, latency_s: float) -> None:
        """Count a request that ended in an error after so many seconds."""
        self._window.failed += 1
        self.fail.add(latency_s)

    @property
    def accuracy(self) -> float:
        """Mean stated accuracy of the answers; 0 before the first."""
        return self._accuracy_sum / self.success.count if self.success.count else 0.0

    @property
    def executions(self) -> int:
        """Batches that ran: a request in a batch of n is 1/n of one."""
        return round(sum(span.count / size for size, span in self.batches.items()))

    def since_start(self) -> Window:
        """Return the counts since start."""
        total = Window()
        total.absorb(self._past)
        total.absorb(self._window)
        return total

    def roll(self) -> Window:
        """Return the counts since the last roll, and begin a new window."""
        ended, self._window = self._window, Window()
        self._past.absorb(ended)
        return ended

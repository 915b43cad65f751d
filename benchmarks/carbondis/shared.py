"""The policies on GPUs that several jobs share, as in CARBONDIS' evaluation (its section V).

In the router a worker serves one model, so its policies see one queue; here they see one per job.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from random import Random
from typing import NamedTuple, Protocol

from benchmarks.carbondis.baselines import LowEnergy, highest
from services.router.core.balancing.carbon_aware import Burden, Layout
from services.router.core.balancing.policy import (
    Gpu,
    Placement,
    Policy,
    PolicyDecision,
    QueuedRequest,
    QueueView,
    Start,
)


@dataclass(slots=True, eq=False)
class SharedGpu(Gpu):
    """A GPU and the number of jobs that share it."""

    jobs: int = 1


@dataclass(slots=True, eq=False)
class JobRequest(QueuedRequest):
    """A waiting request and the index of its job."""

    job: int = 0


class SharedView(NamedTuple):
    """The queues that a policy decides on.

    Attributes:
        now_s: The time (CT).
        intensity_ratio: Intensity now over its average (CIR).
        queues: Waiting requests, by job, in order.
        violations: Requests that missed their constraint so far, by job.
        late: Share of the recent requests that missed it, by job, 0..1.
        tightest_s: Least latency constraint of any job, s; infinite: none.
    """

    now_s: float
    intensity_ratio: float
    queues: Sequence[Sequence[JobRequest]]
    violations: Sequence[int] = ()
    late: Sequence[float] = ()
    tightest_s: float = math.inf


class SharedPolicy(Protocol):
    """Decides which job's request runs where."""

    def decide(self, view: SharedView) -> PolicyDecision:
        """Return what begins now. Called again after each start, until nothing does."""
        ...


Order = Callable[[SharedView], Iterable[Sequence[JobRequest]]]
"""Returns the queues that are not empty, in the order in which they are served."""


def by_arrival(view: SharedView) -> Iterable[Sequence[JobRequest]]:
    """Order the queues by the arrival of their first request."""
    return sorted(filter(None, view.queues), key=lambda queue: queue[0].arrived_s)


def by_violations(view: SharedView) -> Iterable[Sequence[JobRequest]]:
    """Order the queues by their violations, most first."""
    waiting = [job for job, queue in enumerate(view.queues) if queue]
    if view.violations:
        waiting.sort(key=lambda job: -view.violations[job])
    return [view.queues[job] for job in waiting]


@dataclass(frozen=True, slots=True)
class InTurn:
    """A policy of one queue on several: the first queue that it starts a request of.

    Attributes:
        policy: Decides for each queue.
        order: Order of the queues.
    """

    policy: Policy
    order: Order = by_arrival

    def decide(self, view: SharedView) -> PolicyDecision:
        """Return the first start."""
        for queue in self.order(view):
            found = self.policy.decide(QueueView(view.now_s, view.intensity_ratio, queue))
            if found.start is not None:
                return found
        return PolicyDecision(None)


_LOW = InTurn(LowEnergy())


@dataclass(slots=True)
class DyBatch:
    """The time of the shared GPUs in fair parts: to the job that had least; the rest to its own.

    Source: Zhang et al., "DyBatch", CCGrid 2020, without batching, as CARBONDIS has it.
    """

    _had_s: dict[int, float] = field(default_factory=dict)

    def decide(self, view: SharedView) -> PolicyDecision:
        """Use any free GPU, the highest class first."""
        fronts = [queue[0] for queue in view.queues if queue]
        fronts.sort(key=lambda queued: (self._had_s.get(queued.job, 0.0), queued.arrived_s))
        for queued in fronts:
            placement = highest(queued, view.now_s)
            if not placement.gpu.busy:
                self._had_s[queued.job] = self._had_s.get(queued.job, 0.0) + placement.latency_s
                return PolicyDecision(Start(queued, placement))
        return _LOW.decide(view)


@dataclass(slots=True)
class RandomJob:
    """The job that is drawn has the high end for its next request; the others keep to the low end.

    "It randomly selects a job and assigns its request to high-end GPU": the draw is among all jobs
    and holds until that job's request has come and been started.

    Attributes:
        jobs: Number of jobs.
        rng: Source of the draws.
    """

    jobs: int
    rng: Random
    _drawn: int | None = None

    def decide(self, view: SharedView) -> PolicyDecision:
        """Start the drawn job's first request high, and others low."""
        if self._drawn is None:
            self._drawn = self.rng.randrange(self.jobs)
        queue = view.queues[self._drawn]
        if queue:
            placement = highest(queue[0], view.now_s)
            if not placement.gpu.busy:
                self._drawn = None
                return PolicyDecision(Start(queue[0], placement))
        return _LOW.decide(view)


@dataclass(frozen=True, slots=True)
class SharedCarbonAware:
    """Least carbon in time, on shared GPUs.

    Where requests would be late, those with a choice leave the GPUs that several jobs share to
    those without one.

    Attributes:
        most: Requests of each job that are laid out, >= 1.
        calm: Share of any job's recent requests that may be late, 0..1, before any request yields.
        most_late: Share at which all requests yield that would hold a shared GPU for longer than
            the tightest constraint. In between, the longest do: a short one is over while others
            can still wait.
    """

    most: int = 16
    calm: float = 0.03
    most_late: float = 0.045

    def __post_init__(self) -> None:
        if not 0 <= self.calm < self.most_late:
            raise ValueError(f"calm must be within 0..most_late, got {self.calm}, {self.most_late}")

    def decide(self, view: SharedView) -> PolicyDecision:
        """Return the first start of the layout that is due now, and when to decide again."""
        queues = [islice(queue, self.most) for queue in view.queues if queue]
        requests = list(heapq.merge(*queues, key=attrgetter("due_s")))
        layout = Layout(view.now_s, _sharing(self._longest_s(view)))
        if not layout.place(requests):
            layout = Layout(view.now_s, _sharing(0.0))
            layout.place(requests)
        return layout.decision

    def _longest_s(self, view: SharedView) -> float:
        """Return how long a request may hold a shared GPU if it has a choice, s."""
        over = (max(view.late, default=0.0) - self.calm) / (self.most_late - self.calm)
        return view.tightest_s / min(over, 1.0) if over > 0 else math.inf


def _sharing(longest_s: float) -> Burden:
    """Return the number of jobs that share a GPU, for placements that hold it for longer."""

    def burden(placement: Placement) -> float:
        if placement.occupies_s <= longest_s:
            return 0.0
        return placement.gpu.jobs if isinstance(placement.gpu, SharedGpu) else 1.0

    return burden

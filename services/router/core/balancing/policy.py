"""Words of scheduling over GPUs of several classes: jobs ask, GPUs offer, a policy starts.

The same words serve one router's model (its lanes are the GPUs) and a pool whose GPUs are shared
by several jobs (as in the paper's evaluation). Time is seconds of one clock, an argument always.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(slots=True, eq=False)
class Gpu:
    """A GPU, or what a worker has of one, as a policy sees it.

    Attributes:
        key: Its index among those of the view.
        rank: Its class: 0 is the low end, the class with the least idle power.
        free_s: When it is expected to take the next request; the past: it takes one now.
        busy: It cannot take one now, whatever was expected.
        jobs: How many jobs share it.
    """

    key: int
    rank: int
    free_s: float = 0.0
    busy: bool = False
    jobs: int = 1

    def ready_s(self, now_s: float) -> float:
        """Return when it takes the next request; one that is overdue may be as late once more."""
        if not self.busy:
            return now_s
        return self.free_s if self.free_s > now_s else 2 * now_s - self.free_s


class Placement(NamedTuple):
    """What a GPU would make of a request.

    Attributes:
        gpu: Which.
        latency_s: Expected processing time, s (EL).
        likely_s: Processing time that can be counted on, >= latency_s.
        carbon_gco2e: What the request adds to the emissions there: its energy above the idle
            power that is drawn anyway, at the intensity of the GPU's zone.
        occupies_s: How long the GPU takes no other request, s: the latency, or less where it
            serves several at a time.
    """

    gpu: Gpu
    latency_s: float
    likely_s: float
    carbon_gco2e: float
    occupies_s: float


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits.

    Attributes:
        job: Index of its job.
        size: Items in it (its batch size).
        arrived_s: When it came (AT).
        due_s: When it must be answered: arrival and latency constraint (EXFT).
        offers: What each GPU that may serve it would make of it; not empty.
    """

    job: int
    size: int
    arrived_s: float
    due_s: float
    offers: tuple[Placement, ...] = ()


@dataclass(slots=True, eq=False)
class QueueView:
    """What a policy decides on.

    Attributes:
        now_s: The time (CT).
        intensity_ratio: Intensity now over its average (CIR).
        queues: What waits, by job, in order.
        violations: Requests that missed their constraint so far, by job.
        late: Their share of the recent ones, by job, 0..1.
        tightest_s: Least latency constraint of any job, s; infinite: it does not matter.
    """

    now_s: float
    intensity_ratio: float
    queues: Sequence[Sequence[QueuedRequest]]
    violations: Sequence[int] = ()
    late: Sequence[float] = ()
    tightest_s: float = math.inf


class Start(NamedTuple):
    """Give the request to the GPU of the offer, now; it is free."""

    ask: QueuedRequest
    offer: Placement


class Decision(NamedTuple):
    """What a policy decided.

    Attributes:
        start: What begins now; None: nothing, whatever waits had better wait.
        again_s: Decide anew by then even if nothing happens; None: not needed.
    """

    start: Start | None
    again_s: float | None = None


class Policy(Protocol):
    """Who runs where."""

    def decide(self, queue_view: QueueView) -> Decision:
        """Return what begins now. Called again after each start, until nothing does."""
        ...

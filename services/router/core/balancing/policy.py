"""Scheduling over GPUs of several classes: queued requests, their placements, and a policy.

In the router the instances of a model are its GPUs. Time is seconds of one clock, always an
argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(slots=True, eq=False)
class Gpu:
    """A GPU, or a worker's part of one, as a policy sees it.

    Attributes:
        key: Index among the GPUs of the view.
        rank: Class: 0 is the low end, the class with the least idle power.
        free_s: When it is expected to take the next request; the past: it takes one now.
        busy: It cannot take one now, whatever was expected.
    """

    key: int
    rank: int
    free_s: float = 0.0
    busy: bool = False

    def ready_s(self, now_s: float) -> float:
        """Return when it takes the next request; an overdue one is expected to be as late again."""
        if not self.busy:
            return now_s
        return self.free_s if self.free_s > now_s else 2 * now_s - self.free_s


class Placement(NamedTuple):
    """A request's expected execution on one GPU.

    Attributes:
        gpu: The GPU.
        latency_s: Expected processing time, s (EL).
        likely_s: Processing time that can be counted on, >= latency_s.
        carbon_gco2e: Emissions that the request adds there: its energy above the idle power that
            is drawn anyway, at the intensity of the GPU's zone.
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
    """A waiting request.

    Attributes:
        size: Items in it (its batch size).
        arrived_s: Time of arrival (AT).
        due_s: When it must be answered: arrival and latency constraint (EXFT).
        placements: One for each GPU that may serve it; not empty.
    """

    size: int
    arrived_s: float
    due_s: float
    placements: tuple[Placement, ...] = ()


class QueueView(NamedTuple):
    """The queue that a policy decides on.

    Attributes:
        now_s: The time (CT).
        intensity_ratio: Intensity now over its average (CIR).
        queue: Waiting requests, in order; not empty.
    """

    now_s: float
    intensity_ratio: float
    queue: Sequence[QueuedRequest]


class Start(NamedTuple):
    """Give the request to the placement's GPU now; it is free."""

    queued: QueuedRequest
    placement: Placement


class PolicyDecision(NamedTuple):
    """The request to start now, if any.

    Attributes:
        start: The request that begins; None: all had better wait.
        again_s: Decide again by then even without an event; None: not needed.
    """

    start: Start | None
    again_s: float | None = None


class Policy(Protocol):
    """Decides which request runs where."""

    def decide(self, view: QueueView) -> PolicyDecision:
        """Return the request to start now; called again after each start, until there is none."""
        ...

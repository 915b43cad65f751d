"""The policies that CARBONDIS is compared with (its section V-A)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from services.router.core.balancing.carbondis import lowest
from services.router.core.balancing.policy import (
    Decision,
    Placement,
    QueuedRequest,
    QueueView,
    Start,
)


class HighPerf:
    """Only GPUs of the highest class, the soonest free one: as early as can be."""

    def decide(self, queue_view: QueueView) -> Decision:
        """Start the front that came first and has one."""
        return _first(queue_view, highest)


class LowEnergy:
    """Only GPUs of the lowest class, latency ignored."""

    def decide(self, queue_view: QueueView) -> Decision:
        """Start the front that came first and has one."""
        return _first(queue_view, lowest)


@dataclass(slots=True)
class DyBatch:
    """The time of the shared GPUs in fair parts: to the job that had least; the rest to its own.

    Source: Zhang et al., "DyBatch", CCGrid 2020, without batching, as CARBONDIS has it.
    """

    _had_s: dict[int, float] = field(default_factory=dict)

    def decide(self, queue_view: QueueView) -> Decision:
        """Use whatever is free, the highest class first."""
        fronts = [queue[0] for queue in queue_view.queues if queue]
        fronts.sort(key=lambda ask: (self._had_s.get(ask.job, 0.0), ask.arrived_s))
        for ask in fronts:
            offer = highest(ask, queue_view.now_s)
            if not offer.gpu.busy:
                self._had_s[ask.job] = self._had_s.get(ask.job, 0.0) + offer.latency_s
                return Decision(Start(ask, offer))
        return _first(queue_view, lowest)


@dataclass(slots=True)
class RandomJob:
    """Whoever is drawn has the high end for its next request; the others keep to the low end.

    "It randomly selects a job and assigns its request to high-end GPU": the draw is among all jobs
    and holds until that job's request has come and been started.

    Attributes:
        jobs: How many there are.
        rng: Draws.
    """

    jobs: int
    rng: Random
    _drawn: int | None = None

    def decide(self, queue_view: QueueView) -> Decision:
        """Start the drawn job's front high, and others low."""
        if self._drawn is None:
            self._drawn = self.rng.randrange(self.jobs)
        queue = queue_view.queues[self._drawn]
        if queue:
            offer = highest(queue[0], queue_view.now_s)
            if not offer.gpu.busy:
                self._drawn = None
                return Decision(Start(queue[0], offer))
        return _first(queue_view, lowest)


def highest(ask: QueuedRequest, now_s: float) -> Placement:
    """Return the offer of the highest class that is soonest free."""
    return max(ask.offers, key=lambda offer: (offer.gpu.rank, -offer.gpu.ready_s(now_s)))


def _first(queue_view: QueueView, prefer: Callable[[QueuedRequest, float], Placement]) -> Decision:
    fronts = sorted((queue[0] for queue in queue_view.queues if queue), key=_arrival)
    for ask in fronts:
        offer = prefer(ask, queue_view.now_s)
        if not offer.gpu.busy:
            return Decision(Start(ask, offer))
    return Decision(None)


def _arrival(ask: QueuedRequest) -> float:
    return ask.arrived_s

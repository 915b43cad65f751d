"""The baselines of CARBONDIS for GPUs that several jobs share (its section V-A)."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from services.router.core.balancing.baselines import first_in_place, highest
from services.router.core.balancing.carbondis import lowest
from services.router.core.balancing.policy import PolicyDecision, QueueView, Start


@dataclass(slots=True)
class DyBatch:
    """The time of the shared GPUs in fair parts: to the job that had least; the rest to its own.

    Source: Zhang et al., "DyBatch", CCGrid 2020, without batching, as CARBONDIS has it.
    """

    _had_s: dict[int, float] = field(default_factory=dict)

    def decide(self, view: QueueView) -> PolicyDecision:
        """Use whatever is free, the highest class first."""
        fronts = [queue[0] for queue in view.queues if queue]
        fronts.sort(key=lambda queued: (self._had_s.get(queued.job, 0.0), queued.arrived_s))
        for queued in fronts:
            placement = highest(queued, view.now_s)
            if not placement.gpu.busy:
                self._had_s[queued.job] = self._had_s.get(queued.job, 0.0) + placement.latency_s
                return PolicyDecision(Start(queued, placement))
        return first_in_place(view, lowest)


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

    def decide(self, view: QueueView) -> PolicyDecision:
        """Start the drawn job's front high, and others low."""
        if self._drawn is None:
            self._drawn = self.rng.randrange(self.jobs)
        queue = view.queues[self._drawn]
        if queue:
            placement = highest(queue[0], view.now_s)
            if not placement.gpu.busy:
                self._drawn = None
                return PolicyDecision(Start(queue[0], placement))
        return first_in_place(view, lowest)

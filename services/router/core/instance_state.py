"""One worker as its model's dispatcher sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.router.core.latency_estimator import LatencyEstimator
from services.router.core.model import Instance, Request


@dataclass(slots=True, eq=False)
class InstanceState:
    """A worker's credits and what it holds.

    Attributes:
        instance: As in the newest routing table that has it.
        credits: Requests it may hold; 0 until it said hello.
        up: It said hello and its stream is open.
        draining: It takes no more work.
        leaving: The routing table has it no more.
        in_flight: What it holds, by number; each takes a credit.
        used_at: Tick of its last change, for "idle longest".
        weight: Its state in smooth weighted round robin.
        answered: Requests it answered.
        latency: How fast it answers.
    """

    instance: Instance
    credits: int = 0
    up: bool = False
    draining: bool = False
    leaving: bool = False
    in_flight: dict[int, Request] = field(default_factory=dict)
    used_at: int = 0
    weight: float = 0.0
    answered: int = 0
    latency: LatencyEstimator = field(default_factory=LatencyEstimator)

    @property
    def takes_work(self) -> bool:
        """It may be given requests while it has credits."""
        return self.up and not (self.draining or self.leaving)

    @property
    def free(self) -> bool:
        """It has a credit."""
        return len(self.in_flight) < self.credits

    @property
    def suspected(self) -> bool:
        """It holds a request that another worker died with."""
        return any(request.deaths for request in self.in_flight.values())

    @property
    def pull(self) -> float:
        """Its weight among others: the share, or 1 among those that have none."""
        return self.instance.share or 1.0

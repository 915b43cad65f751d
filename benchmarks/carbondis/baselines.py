"""Two baselines that CARBONDIS is compared with (its section V-A), for experiments."""

from services.router.core.balancing.carbondis import lowest
from services.router.core.balancing.policy import (
    Placement,
    PolicyDecision,
    QueuedRequest,
    QueueView,
    Start,
)


class HighPerf:
    """Only GPUs of the highest class, the one that is free soonest."""

    def decide(self, view: QueueView) -> PolicyDecision:
        """Start the first request if such a GPU is free."""
        return _start(view.queue[0], highest(view.queue[0], view.now_s))


class LowEnergy:
    """Only GPUs of the lowest class, latency ignored."""

    def decide(self, view: QueueView) -> PolicyDecision:
        """Start the first request if such a GPU is free."""
        return _start(view.queue[0], lowest(view.queue[0], view.now_s))


def highest(queued: QueuedRequest, now_s: float) -> Placement:
    """Return the placement on the highest class that is free soonest."""
    return max(queued.placements, key=lambda each: (each.gpu.rank, -each.gpu.ready_s(now_s)))


def _start(queued: QueuedRequest, placement: Placement) -> PolicyDecision:
    return PolicyDecision(None if placement.gpu.busy else Start(queued, placement))

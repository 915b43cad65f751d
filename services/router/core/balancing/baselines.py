"""Two baselines that CARBONDIS is compared with (its section V-A), for experiments."""

from __future__ import annotations

from collections.abc import Callable

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
        """Start the earliest request whose placement is free."""
        return first_in_place(view, highest)


class LowEnergy:
    """Only GPUs of the lowest class, latency ignored."""

    def decide(self, view: QueueView) -> PolicyDecision:
        """Start the earliest request whose placement is free."""
        return first_in_place(view, lowest)


def highest(queued: QueuedRequest, now_s: float) -> Placement:
    """Return the placement on the highest class that is free soonest."""
    return max(
        queued.placements, key=lambda placement: (placement.gpu.rank, -placement.gpu.ready_s(now_s))
    )


def first_in_place(
    view: QueueView, prefer: Callable[[QueuedRequest, float], Placement]
) -> PolicyDecision:
    """Start the earliest first request of any job whose preferred placement is free."""
    fronts = sorted((queue[0] for queue in view.queues if queue), key=_arrival)
    for queued in fronts:
        placement = prefer(queued, view.now_s)
        if not placement.gpu.busy:
            return PolicyDecision(Start(queued, placement))
    return PolicyDecision(None)


def _arrival(queued: QueuedRequest) -> float:
    return queued.arrived_s

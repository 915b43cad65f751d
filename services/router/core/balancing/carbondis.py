"""Algorithm 1 of CARBONDIS, on any number of GPUs per class and any number of classes.

Source: CARBONDIS (CCGrid 2025), section IV-C. Where it leaves a choice, this is ours:
- CT of Eq. 6 "is the time that the request will be executed": where the low-end GPU is busy, the
  time by which it is expected to be free. A request waits there if that is in time.
- Above the low end, a request that may be late takes the least class that is free and in time,
  else the quickest that is free; one that is not takes the one that emits least.
"""

from dataclasses import dataclass

from services.router.core.balancing.policy import (
    Placement,
    PolicyDecision,
    QueuedRequest,
    QueueView,
    Start,
)


@dataclass(frozen=True, slots=True)
class Carbondis:
    """Low-end GPUs first; high-end ones for requests that would be late, and for all if CIR > CIT.

    Attributes:
        intensity_threshold: CIT: ratio of the intensity to its average above which it is high.
    """

    intensity_threshold: float = 1.0

    def decide(self, view: QueueView) -> PolicyDecision:
        """Start the first request if its GPU is free."""
        high_intensity = view.intensity_ratio > self.intensity_threshold
        queued = view.queue[0]
        placement = self._placement(queued, view.now_s, high_intensity=high_intensity)
        return PolicyDecision(Start(queued, placement) if placement else None)

    def _placement(
        self, queued: QueuedRequest, now_s: float, *, high_intensity: bool
    ) -> Placement | None:
        low = lowest(queued, now_s)
        estimated_s = low.gpu.ready_s(now_s) + low.latency_s  # ESFT
        late = estimated_s > queued.due_s
        if late or high_intensity:
            high = [o for o in queued.placements if o.gpu.rank > low.gpu.rank and not o.gpu.busy]
            if high:
                return _in_time(high, queued, now_s) if late else min(high, key=_carbon)
        return None if low.gpu.busy else low


def lowest(queued: QueuedRequest, now_s: float) -> Placement:
    """Return the placement on the lowest class that is free soonest."""
    return min(
        queued.placements, key=lambda placement: (placement.gpu.rank, placement.gpu.ready_s(now_s))
    )


def _in_time(high: list[Placement], queued: QueuedRequest, now_s: float) -> Placement:
    in_time = [placement for placement in high if now_s + placement.latency_s <= queued.due_s]
    if in_time:
        return min(in_time, key=lambda placement: placement.gpu.rank)
    return min(high, key=lambda placement: placement.latency_s)


def _carbon(placement: Placement) -> float:
    return placement.carbon_gco2e

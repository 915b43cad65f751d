"""Least carbon in time: each request where it emits least among placements that keep its deadline.

At every event the waiting requests are laid out on the GPUs in order. A request whose best GPU is
taken waits for it, as long as it can still be in time there; the moment it cannot, it takes the
next best. So the GPU that adds least per request is never idle while a request waits, and the
others serve only what it cannot.

Unlike CARBONDIS: idle power is drawn whichever GPU computes, so a placement counts only
the energy above it; and which GPU that favours differs by request size and zone, not by the hour.
Intensity changes over minutes, requests wait for milliseconds, so a forecast changes nothing here;
it serves the planner, which decides which GPUs are powered.
"""

from collections.abc import Callable, Iterable

from services.router.core.balancing.policy import (
    Gpu,
    Placement,
    PolicyDecision,
    QueuedRequest,
    QueueView,
    Start,
)

Burden = Callable[[Placement], float]
"""Value compared before the carbon of a placement that is in time: less is better."""


class CarbonAware:
    """Lays the queue out at every event."""

    def decide(self, view: QueueView) -> PolicyDecision:
        """Return the first start of the layout that is due now, and when to decide again."""
        layout = Layout(view.now_s)
        layout.place(view.queue)
        return layout.decision


class Layout:
    """Planned starts of the waiting requests: request, placement, time.

    Args:
        now_s: The time.
        burden: Cost that is compared before the carbon.
    """

    def __init__(self, now_s: float, burden: Burden = lambda _: 0.0) -> None:
        self._now_s = now_s
        self._burden = burden
        self._start: Start | None = None  # the first that begins now
        self._latest_s: list[float] = []  # by when waiting requests would have to begin elsewhere
        self._ready_s: dict[Gpu, float] = {}

    @property
    def decision(self) -> PolicyDecision:
        """The start that is due now, and when to decide again."""
        return PolicyDecision(self._start, min(self._latest_s, default=None))

    def place(self, requests: Iterable[QueuedRequest]) -> bool:
        """Lay requests out in order, late ones last; return whether all are in time."""
        late = []
        for queued in requests:
            placement, start_s, in_time = self._best(queued)
            if not in_time:
                late.append(queued)
                continue
            self._assign(queued, placement, start_s)
            self._latest_s += _latest_starts_s(queued, placement, self._now_s)
        for queued in late:
            placement, start_s, _ = self._best(queued)
            self._assign(queued, placement, start_s)
        return not late

    def _assign(self, queued: QueuedRequest, placement: Placement, start_s: float) -> None:
        if self._start is None and start_s <= self._now_s and not placement.gpu.busy:
            self._start = Start(queued, placement)
        self._ready_s[placement.gpu] = start_s + placement.occupies_s

    def _best(self, queued: QueuedRequest) -> tuple[Placement, float, bool]:
        """Return the best placement in time, else the soonest; its start; whether it is in time."""
        placement = min(queued.placements, key=lambda each: self._rank(queued, each))
        start_s = self._start_s(placement.gpu)
        return placement, start_s, start_s + placement.likely_s <= queued.due_s

    def _rank(
        self, queued: QueuedRequest, placement: Placement
    ) -> tuple[bool, float, float, float]:
        start_s = self._start_s(placement.gpu)
        late = start_s + placement.likely_s > queued.due_s
        end_s = start_s + placement.latency_s
        first = end_s if late else self._burden(placement)
        return late, first, placement.carbon_gco2e, end_s

    def _start_s(self, gpu: Gpu) -> float:
        found = self._ready_s.get(gpu)
        if found is None:
            found = self._ready_s[gpu] = gpu.ready_s(self._now_s)
        return found


def _latest_starts_s(queued: QueuedRequest, chosen: Placement, now_s: float) -> list[float]:
    """Return the latest start of a request on another free GPU that is in time; []: none is."""
    latest_s = [
        queued.due_s - placement.likely_s
        for placement in queued.placements
        if not placement.gpu.busy and placement.gpu is not chosen.gpu
    ]
    last_s = max(latest_s, default=now_s)
    return [last_s] if last_s > now_s else []

"""Least carbon in time: each request where it emits least among the places that keep its deadline.

At every event what waits is laid out on the GPUs, earliest deadline first. A request whose best
place is taken waits for it, as long as it can still be in time there; the moment it cannot, it
takes the next best. So the GPU that adds least per request is never idle while something waits,
and the others serve only what it cannot.

What CARBONDIS does not see: idle power is drawn whoever computes, so an offer counts only energy
above it; and which GPU that favours differs by request size and zone, not by the hour. Intensity
changes over minutes, requests wait for milliseconds: a forecast moves nothing here. It tells the
planner which GPUs to power.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from services.router.core.balancing.policy import (
    Gpu,
    Placement,
    PolicyDecision,
    QueuedRequest,
    QueueView,
    Start,
)


@dataclass(frozen=True, slots=True)
class CarbonAware:
    """Lays the queue out anew at every event.

    Attributes:
        most: Requests of each job that are laid out, >= 1.
        calm: Share of any job's recent requests that may be late, 0..1, before anybody yields.
        most_late: Share at which all those yield that would hold a shared GPU for longer than the
            tightest constraint. In between, the longest do: a short one is over while others can
            still wait.
    """

    most: int = 16
    calm: float = 0.03
    most_late: float = 0.045

    def __post_init__(self) -> None:
        if not 0 <= self.calm < self.most_late:
            raise ValueError(f"calm must be within 0..most_late, got {self.calm}, {self.most_late}")

    def decide(self, view: QueueView) -> PolicyDecision:
        """Return the first start of the layout that is due now, and when to look again.

        Where somebody would be late, those that have a choice leave the GPUs that several jobs
        share to those that have none.
        """
        requests = list(_by_deadline(view, self.most))
        layout = _Layout(view.now_s, self._longest_s(view))
        if not layout.place(requests):
            layout = _Layout(view.now_s, longest_s=0.0)
            layout.place(requests)
        return PolicyDecision(layout.start, min(layout.latest_s, default=None))

    def _longest_s(self, view: QueueView) -> float:
        """Return how long a request may hold a shared GPU if it has a choice, s."""
        over = (max(view.late, default=0.0) - self.calm) / (self.most_late - self.calm)
        return view.tightest_s / min(over, 1.0) if over > 0 else math.inf


class _Layout:
    """Who would begin where and when.

    Args:
        now_s: The time.
        longest_s: Who would hold a GPU for longer prefers one that fewer jobs share, whatever is
            emitted.

    Attributes:
        start: What begins now: the first that does.
        latest_s: Times by which somebody that waits by choice would have to begin elsewhere.
    """

    def __init__(self, now_s: float, longest_s: float) -> None:
        self.start: Start | None = None
        self.latest_s: list[float] = []
        self._longest_s = longest_s
        self._now_s = now_s
        self._ready_s: dict[Gpu, float] = {}

    def place(self, requests: Iterable[QueuedRequest]) -> bool:
        """Lay requests out in order, those that cannot be in time last; tell if all are."""
        late = []
        for queued in requests:
            placement, start_s, in_time = self._best(queued)
            if not in_time:
                late.append(queued)
                continue
            self._give(queued, placement, start_s)
            self.latest_s += _latest_starts_s(queued, placement, self._now_s)
        for queued in late:
            placement, start_s, _ = self._best(queued)
            self._give(queued, placement, start_s)
        return not late

    def _give(self, queued: QueuedRequest, placement: Placement, start_s: float) -> None:
        if self.start is None and start_s <= self._now_s and not placement.gpu.busy:
            self.start = Start(queued, placement)
        self._ready_s[placement.gpu] = start_s + placement.occupies_s

    def _best(self, queued: QueuedRequest) -> tuple[Placement, float, bool]:
        """Return the best offer that is in time, else the soonest; its start; if it is in time."""
        placement = min(queued.placements, key=lambda each: self._rank(queued, each))
        start_s = self._start_s(placement.gpu)
        return placement, start_s, start_s + placement.likely_s <= queued.due_s

    def _rank(
        self, queued: QueuedRequest, placement: Placement
    ) -> tuple[bool, float, float, float]:
        start_s = self._start_s(placement.gpu)
        late = start_s + placement.likely_s > queued.due_s
        end_s = start_s + placement.latency_s
        shared = placement.gpu.jobs if placement.occupies_s > self._longest_s else 0
        return late, end_s if late else shared, placement.carbon_gco2e, end_s

    def _start_s(self, gpu: Gpu) -> float:
        found = self._ready_s.get(gpu)
        if found is None:
            found = self._ready_s[gpu] = gpu.ready_s(self._now_s)
        return found


def _latest_starts_s(queued: QueuedRequest, chosen: Placement, now_s: float) -> list[float]:
    """Return by when the last of the GPUs that are free would have to begin, if it still can."""
    latest_s = [
        queued.due_s - placement.likely_s
        for placement in queued.placements
        if not placement.gpu.busy and placement.gpu is not chosen.gpu
    ]
    last_s = max(latest_s, default=now_s)
    return [last_s] if last_s > now_s else []


def _by_deadline(view: QueueView, most: int) -> Iterable[QueuedRequest]:
    queues = [islice(queue, most) for queue in view.queues if queue]
    if len(queues) == 1:
        return queues[0]
    return heapq.merge(*queues, key=_due)


def _due(queued: QueuedRequest) -> float:
    return queued.due_s

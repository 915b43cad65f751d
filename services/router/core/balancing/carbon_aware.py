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
    Decision,
    Gpu,
    Placement,
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

    def decide(self, queue_view: QueueView) -> Decision:
        """Return the first start of the layout that is due now, and when to look again.

        Where somebody would be late, those that have a choice leave the GPUs that several jobs
        share to those that have none.
        """
        queued = list(_by_deadline(queue_view, self.most))
        layout = _Layout(queue_view.now_s, self._longest_s(queue_view))
        if not layout.place(queued):
            layout = _Layout(queue_view.now_s, longest_s=0.0)
            layout.place(queued)
        return Decision(layout.start, min(layout.latest_s, default=None))

    def _longest_s(self, queue_view: QueueView) -> float:
        """Return how long a request may hold a shared GPU if it has a choice, s."""
        over = (max(queue_view.late, default=0.0) - self.calm) / (self.most_late - self.calm)
        return queue_view.tightest_s / min(over, 1.0) if over > 0 else math.inf


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

    def place(self, queued: Iterable[QueuedRequest]) -> bool:
        """Lay requests out in order, those that cannot be in time last; tell if all are."""
        late = []
        for ask in queued:
            offer, start_s, in_time = self._best(ask)
            if not in_time:
                late.append(ask)
                continue
            self._give(ask, offer, start_s)
            self.latest_s += _latest_starts_s(ask, offer, self._now_s)
        for ask in late:
            offer, start_s, _ = self._best(ask)
            self._give(ask, offer, start_s)
        return not late

    def _give(self, ask: QueuedRequest, offer: Placement, start_s: float) -> None:
        if self.start is None and start_s <= self._now_s and not offer.gpu.busy:
            self.start = Start(ask, offer)
        self._ready_s[offer.gpu] = start_s + offer.occupies_s

    def _best(self, ask: QueuedRequest) -> tuple[Placement, float, bool]:
        """Return the best offer that is in time, else the soonest; its start; if it is in time."""
        offer = min(ask.offers, key=lambda each: self._rank(ask, each))
        start_s = self._start_s(offer.gpu)
        return offer, start_s, start_s + offer.likely_s <= ask.due_s

    def _rank(self, ask: QueuedRequest, offer: Placement) -> tuple[bool, float, float, float]:
        start_s = self._start_s(offer.gpu)
        late = start_s + offer.likely_s > ask.due_s
        end_s = start_s + offer.latency_s
        shared = offer.gpu.jobs if offer.occupies_s > self._longest_s else 0
        return late, end_s if late else shared, offer.carbon_gco2e, end_s

    def _start_s(self, gpu: Gpu) -> float:
        found = self._ready_s.get(gpu)
        if found is None:
            found = self._ready_s[gpu] = gpu.ready_s(self._now_s)
        return found


def _latest_starts_s(ask: QueuedRequest, chosen: Placement, now_s: float) -> list[float]:
    """Return by when the last of the GPUs that are free would have to begin, if it still can."""
    latest_s = [
        ask.due_s - offer.likely_s
        for offer in ask.offers
        if not offer.gpu.busy and offer.gpu is not chosen.gpu
    ]
    last_s = max(latest_s, default=now_s)
    return [last_s] if last_s > now_s else []


def _by_deadline(queue_view: QueueView, most: int) -> Iterable[QueuedRequest]:
    queues = [islice(queue, most) for queue in queue_view.queues if queue]
    if len(queues) == 1:
        return queues[0]
    return heapq.merge(*queues, key=_due)


def _due(ask: QueuedRequest) -> float:
    return ask.due_s

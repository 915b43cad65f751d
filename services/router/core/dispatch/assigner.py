"""Gives what waits to the instances that have a credit, in the order and by the choice in force."""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.router.core.balancing.weigher import MOST
from services.router.core.dispatch.admission import WaitingRoom
from services.router.core.dispatch.decisions import Decision, Fail, Look, Send
from services.router.core.dispatch.instance_pool import Roster
from services.router.core.instance_state import Lane
from services.router.core.model import ModelRoutes, Request
from services.router.core.queue.request_queue import Queue


class Handout:
    """What a dispatcher does when work or credits come free.

    Args:
        room: Who waits.
        roster: Who may be given it.
        routes: The model's, with its policies.
    """

    def __init__(self, room: WaitingRoom, roster: Roster, routes: ModelRoutes) -> None:
        self._room = room
        self._roster = roster
        self._routes = routes
        self._look_s = math.inf

    @property
    def weighs(self) -> bool:
        """The instance choice looks at several requests, and may let them wait."""
        return self._roster.weigher is not None

    def refresh(self, routes: ModelRoutes, now_s: float) -> list[Decision]:
        """Find out who may take work now, and give it."""
        self._routes = routes
        self._room.arrange(routes)
        self._roster.refresh(
            routes.instance_choice,
            pressed=self._room.pressure.on,
            intensity_threshold=routes.intensity_threshold,
        )
        return self.assign(now_s)

    def assign(self, now_s: float) -> list[Decision]:
        """Give what waits to who has a credit; what waited in vain ends without taking one."""
        suspects, queue = self._room.suspects, self._room.queue
        decisions = self._assign_from(suspects, now_s, unsuspected=True) if suspects else []
        decisions += self.weigh(now_s) if self.weighs else self._assign_from(queue, now_s)
        pressure = self._room.pressure
        if pressure.on and not queue:
            pressure.end(now_s)
            return [*decisions, *self.refresh(self._routes, now_s)]
        return decisions

    def look(self, now_s: float) -> list[Decision]:
        """Decide anew for what waits by choice."""
        self._look_s = math.inf
        return self.assign(now_s) if self._room.queue else []

    def weigh(self, now_s: float) -> list[Decision]:
        """Give what waits to the lanes that a policy picks; it may say that waiting is better."""
        weigher, slo_s = self._roster.weigher, self._routes.slo_latency_s
        decisions: list[Decision] = []
        while weigher is not None and (front := self._room.queue.front(MOST)):
            picked = weigher.pick(front, self._roster.eligible, now_s, slo_s)
            if picked.request is None or picked.lane is None:
                return [*decisions, *self._look_again(picked.again_s, now_s)]
            self._room.queue.remove(picked.request)
            decisions.append(self._give_in_time(picked.lane, picked.request, now_s))
        return decisions

    def give(self, lane: Lane, request: Request, now_s: float) -> Send:
        """Give a request to a lane."""
        request.holder, request.sent = lane.instance.id, False
        request.sent_s = now_s
        self._roster.give(lane, request)
        return Send(lane.instance, request)

    def _assign_from(
        self, queue: Queue, now_s: float, *, unsuspected: bool = False
    ) -> list[Decision]:
        decisions: list[Decision] = []
        lane: Lane | None = None
        while queue:
            lane = lane or self._roster.free(unsuspected=unsuspected)
            if lane is None:
                return decisions
            given = self._give_in_time(lane, queue.pop(), now_s)
            decisions.append(given)
            lane = lane if isinstance(given, Fail) else None
        return decisions

    def _look_again(self, at_s: float | None, now_s: float) -> Iterable[Decision]:
        if at_s is None or now_s < self._look_s <= at_s:  # that one has been asked for
            return ()
        self._look_s = at_s
        return (Look(self._routes.model, at_s),)

    def _give_in_time(self, lane: Lane, request: Request, now_s: float) -> Decision:
        """Give a request to a lane, or end it where that is in vain."""
        error = self._room.in_vain(request, lane, self._roster, now_s)
        if error is None:
            return self.give(lane, request, now_s)
        request.over = True
        return Fail(request, error)

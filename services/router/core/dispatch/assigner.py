"""Gives what waits to the instances that have a credit, in the order and by the choice in force."""

from __future__ import annotations

import math
from collections.abc import Iterable

from services.router.core.balancing.weigher import MOST
from services.router.core.dispatch.admission import Admission
from services.router.core.dispatch.decisions import Decision, Fail, Reconsider, Send
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import ModelRoutes, Request
from services.router.core.queue.request_queue import Queue


class Assigner:
    """What a dispatcher does when work or credits come free.

    Args:
        admission: Who waits.
        pool: Who may be given it.
        routes: The model's, with its policies.
    """

    def __init__(self, admission: Admission, pool: InstancePool, routes: ModelRoutes) -> None:
        self._admission = admission
        self._pool = pool
        self._routes = routes
        self._reconsider_s = math.inf

    @property
    def weighs(self) -> bool:
        """The instance choice looks at several requests, and may let them wait."""
        return self._pool.weigher is not None

    def refresh(self, routes: ModelRoutes, now_s: float) -> list[Decision]:
        """Find out who may take work now, and give it."""
        self._routes = routes
        self._admission.arrange(routes)
        self._pool.refresh(
            routes.instance_choice,
            overloaded=self._admission.overload.on,
            intensity_threshold=routes.intensity_threshold,
        )
        return self.assign(now_s)

    def assign(self, now_s: float) -> list[Decision]:
        """Give what waits to who has a credit; what waited in vain ends without taking one."""
        suspects, queue = self._admission.suspects, self._admission.queue
        decisions = self._assign_from(suspects, now_s, unsuspected=True) if suspects else []
        decisions += self.weigh(now_s) if self.weighs else self._assign_from(queue, now_s)
        overload = self._admission.overload
        if overload.on and not queue:
            overload.end(now_s)
            return [*decisions, *self.refresh(self._routes, now_s)]
        return decisions

    def reconsider(self, now_s: float) -> list[Decision]:
        """Decide anew for what waits by choice."""
        self._reconsider_s = math.inf
        return self.assign(now_s) if self._admission.queue else []

    def weigh(self, now_s: float) -> list[Decision]:
        """Give what waits to the lanes that a policy picks; it may say that waiting is better."""
        weigher, slo_s = self._pool.weigher, self._routes.slo_latency_s
        decisions: list[Decision] = []
        while weigher is not None and (front := self._admission.queue.front(MOST)):
            picked = weigher.pick(front, self._pool.eligible, now_s, slo_s)
            if picked.request is None or picked.state is None:
                return [*decisions, *self._reconsider_later(picked.again_s, now_s)]
            self._admission.queue.remove(picked.request)
            decisions.append(self._give_in_time(picked.state, picked.request, now_s))
        return decisions

    def give(self, state: InstanceState, request: Request, now_s: float) -> Send:
        """Give a request to a lane."""
        request.holder, request.sent = state.instance.id, False
        request.sent_s = now_s
        self._pool.give(state, request)
        return Send(state.instance, request)

    def _assign_from(
        self, queue: Queue, now_s: float, *, unsuspected: bool = False
    ) -> list[Decision]:
        decisions: list[Decision] = []
        state: InstanceState | None = None
        while queue:
            state = state or self._pool.free(unsuspected=unsuspected)
            if state is None:
                return decisions
            given = self._give_in_time(state, queue.pop(), now_s)
            decisions.append(given)
            state = state if isinstance(given, Fail) else None
        return decisions

    def _reconsider_later(self, at_s: float | None, now_s: float) -> Iterable[Decision]:
        if at_s is None or now_s < self._reconsider_s <= at_s:  # that one has been asked for
            return ()
        self._reconsider_s = at_s
        return (Reconsider(self._routes.model, at_s),)

    def _give_in_time(self, state: InstanceState, request: Request, now_s: float) -> Decision:
        """Give a request to a lane, or end it where that is in vain."""
        error = self._admission.too_late(request, state, self._pool, now_s)
        if error is None:
            return self.give(state, request, now_s)
        request.over = True
        return Fail(request, error)

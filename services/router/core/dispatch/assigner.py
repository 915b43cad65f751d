"""Assigns waiting requests to instances with a free credit, in order and by the choice in force."""

import math
from collections.abc import Iterable, Iterator

from services.router.core.balancing.weigher import MAX_WEIGHED
from services.router.core.dispatch.admission import Admission, too_inaccurate
from services.router.core.dispatch.decisions import Decision, Fail, Reconsider, Send, fail
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import RequestQueue
from services.router.core.token_times import TokenObjective


class Assigner:
    """What a dispatcher does when a request comes or a credit becomes free.

    Args:
        admission: The requests that wait.
        pool: The instances.
        routes: The model's entry in the routing table, with its policies.
    """

    def __init__(self, admission: Admission, pool: InstancePool, routes: ModelRoutes) -> None:
        self._admission = admission
        self._pool = pool
        self._routes = routes
        self._reconsider_s = math.inf

    @property
    def weighs(self) -> bool:
        """Whether the instance choice compares several requests and may let them wait."""
        return self._pool.weigher is not None

    def refresh(self, routes: ModelRoutes, now_s: float) -> list[Decision]:
        """Determine which instances may take requests, and assign what waits."""
        self._routes = routes
        self._admission.arrange(routes)
        self._pool.refresh(
            routes.instance_choice,
            overloaded=self._admission.overload.active,
            intensity_threshold=routes.intensity_threshold,
            tokens=TokenObjective(routes.slo_first_token_s, routes.slo_token_s),
        )
        return [*self.end_hopeless(), *self.assign_waiting(now_s)]

    def assign_waiting(self, now_s: float) -> list[Decision]:
        """Assign waiting requests to free instances; those that came too late end instead."""
        suspects, queue = self._admission.suspects, self._admission.queue
        decisions = self._assign_from(suspects, now_s, unsuspected=True) if suspects else []
        decisions += self.assign_choosy(now_s)
        decisions += self.weigh(now_s) if self.weighs else self._assign_from(queue, now_s)
        overload = self._admission.overload
        if overload.active and not queue:
            overload.end(now_s)
            return [*decisions, *self.refresh(self._routes, now_s)]
        return decisions

    def reconsider(self, now_s: float) -> list[Decision]:
        """Decide again about requests that a policy lets wait."""
        self._reconsider_s = math.inf
        return self.assign_waiting(now_s) if self._admission.queue else []

    def weigh(self, now_s: float) -> list[Decision]:
        """Assign requests to the instances that a policy picks; it may let them wait."""
        weigher, slo_s = self._pool.weigher, self._routes.slo_latency_s
        decisions: list[Decision] = []
        while weigher is not None and (front := self._admission.queue.front(MAX_WEIGHED)):
            picked = weigher.pick(front, self._pool.eligible, now_s, slo_s)
            if picked.pending is None or picked.state is None:
                return [*decisions, *self._reconsider_later(picked.again_s, now_s)]
            self._admission.queue.remove(picked.pending)
            decisions.append(self._assign_in_time(picked.state, picked.pending, now_s))
        return decisions

    def assign_choosy(self, now_s: float) -> list[Decision]:
        """Assign requests that require an accuracy; none of them goes before an older one."""
        decisions: list[Decision] = []
        full: set[float] = set()  # accuracies for which no instance is free
        choosy = self._admission.choosy
        for pending in choosy.front(len(choosy)):
            accuracy = self._pool.least_accuracy(pending.request.accuracy_floor)
            if accuracy in full:
                continue
            if not self.weighs:
                queue = self._admission.queue
                decisions += self._assign_from(queue, now_s, before=pending.order)
            state = self._pool.free(pending=pending)
            if state is None:
                full.add(accuracy)
                continue
            choosy.remove(pending)
            decisions.append(self._assign_in_time(state, pending, now_s))
        return decisions

    def end_hopeless(self) -> Iterator[Decision]:
        """End waiting requests that require an accuracy which no variant has any more."""
        for pending in (*self._admission.suspects, *self._admission.choosy):
            error = too_inaccurate(self._routes, pending)
            if error is not None:
                self._admission.remove(pending)
                yield fail(pending, error)

    def _reconsider_later(self, at_s: float | None, now_s: float) -> Iterable[Decision]:
        if at_s is None or now_s < self._reconsider_s <= at_s:  # an earlier call is due anyway
            return ()
        self._reconsider_s = at_s
        return (Reconsider(self._routes.model, at_s),)

    def _assign_in_time(
        self, state: InstanceState, pending: PendingRequest, now_s: float
    ) -> Decision:
        """Assign a request to an instance, or end it where that would be too late."""
        error = self._admission.too_late(pending, state, self._pool, now_s)
        if error is None:
            return self.assign(state, pending, now_s)
        return fail(pending, error)

    def assign(self, state: InstanceState, pending: PendingRequest, now_s: float) -> Send:
        """Assign a request to an instance."""
        pending.assign(state.instance.id, self._pool.hold(state, pending), now_s)
        return Send(state.instance, pending)

    def _assign_from(
        self,
        queue: RequestQueue,
        now_s: float,
        *,
        unsuspected: bool = False,
        before: int | None = None,
    ) -> list[Decision]:
        decisions: list[Decision] = []
        state: InstanceState | None = None
        each_asks = unsuspected or self._pool.by_prompt
        while queue and (before is None or queue.front(1)[0].order < before):
            state = state or self._pool.free(
                unsuspected=unsuspected, pending=queue.front(1)[0] if each_asks else None
            )
            if state is None:
                return decisions
            decision = self._assign_in_time(state, queue.pop(), now_s)
            decisions.append(decision)
            state = state if isinstance(decision, Fail) and not each_asks else None
        return decisions

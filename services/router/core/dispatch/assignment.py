"""Assignment of waiting requests to instances."""

import math
from collections.abc import Iterator

from services.kit.errors import ServiceError
from services.router.core.balancing.weigher import MAX_WEIGHED, CarbonSignal
from services.router.core.dispatch.admission import Admission, too_inaccurate
from services.router.core.dispatch.decisions import Decision, Fail, Reconsider, Send, fail
from services.router.core.dispatch.filler import Filler, WaitingBounds
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.instance_state import InstanceState
from services.router.core.model import Limits, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.request_queue import ByteBudget, RequestQueue
from services.router.core.token_times import TokenObjective


class Assignment:
    """Owner of one model's waiting requests and instances; assigns requests to instances.

    Assigning is in order and by the choice in force, whenever a request waits and a credit is free.

    Attributes:
        routes: The model's entry in the routing table, with its policies.
        limits: Bounds of the model.
        states: Every instance that is dialled, by identity.
        silence: Those of them that have fallen silent.
        filler: Requests that can wait: `queue_depth` counts none of them.
        overload: Whether it has more requests than it can answer.
        now_s: The newest time given by any event. Late is safe: requests are then given up later.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        byte_budget: ByteBudget | None = None,
        carbon: CarbonSignal | None = None,
        bounds: WaitingBounds | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self.now_s = 0.0
        self._pool = InstancePool(routes.instance_choice, carbon)
        self.states = self._pool.states
        self.silence = self._pool.silence
        self._waiting = Admission(routes, limits, byte_budget or ByteBudget())
        self.overload = self._waiting.overload
        self.filler = Filler(self._pool, bounds or WaitingBounds())
        self.filler.follow(routes)
        self._reconsider_s = math.inf

    def _see(self, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)

    @property
    def queue_depth(self) -> int:
        """Requests that wait for an instance."""
        return self._waiting.depth

    @property
    def slots(self) -> int:
        """Requests that instances may hold together."""
        return self._pool.slots

    def _refresh(self) -> list[Decision]:
        """Determine which instances may take requests, and assign what waits."""
        routes = self.routes
        self._waiting.arrange(routes)
        self.filler.follow(routes)
        self._pool.refresh(
            routes.instance_choice,
            overloaded=self.overload.active,
            intensity_threshold=routes.intensity_threshold,
            tokens=TokenObjective(routes.slo_first_token_s, routes.slo_token_s),
        )
        return [*self._end_hopeless(), *self._assign_waiting()]

    def _assign_waiting(self) -> list[Decision]:
        """Assign waiting requests to free instances; those that came too late end instead."""
        waiting = self._waiting
        decisions = self._assign_from(waiting.returned)
        decisions += self._assign_choosy()
        decisions += self._weigh() if self._pool.weigher else self._assign_from(waiting.queue)
        if self.overload.active and not waiting.queue.places:
            self.overload.end(self.now_s)
            return decisions + self._refresh()
        return decisions + self._fill()

    def _fill(self) -> list[Decision]:
        """Admit deferrable requests into the room that is left, none while others wait."""
        if not self.filler.queue.places:
            return []
        return self.filler.fill(self.routes.model, self.now_s, paused=self._waiting.depth > 0)

    def _weigh(self) -> list[Decision]:
        """Assign requests to the instances that a policy picks; it may let them wait."""
        pool, queue, now_s = self._pool, self._waiting.queue, self.now_s
        decisions: list[Decision] = []
        while pool.weigher is not None and (front := queue.front(MAX_WEIGHED)):
            slo_s = self.routes.slo_latency_s
            picked = pool.weigher.pick(front, pool.calm(pool.eligible, now_s), now_s, slo_s)
            if picked.pending is None or picked.state is None:
                again_s = picked.again_s
                if again_s is not None and not now_s < self._reconsider_s <= again_s:
                    self._reconsider_s = again_s
                    decisions.append(Reconsider(self.routes.model, again_s))
                break
            queue.remove(picked.pending)
            decisions.append(self._assign_in_time(picked.state, picked.pending))
        return decisions

    def _assign_choosy(self) -> list[Decision]:
        """Assign requests that require an accuracy; none of them goes before an older one."""
        decisions: list[Decision] = []
        full: set[float] = set()  # accuracies for which no instance is free
        choosy = self._waiting.choosy
        for pending in choosy.front(len(choosy.places)):
            accuracy = self._pool.least_accuracy(pending.request.accuracy_floor)
            if accuracy in full:
                continue
            if not self._pool.weigher:
                decisions += self._assign_from(self._waiting.queue, before=pending.order)
            state = self._pool.free(pending, self.now_s)
            if state is None:
                full.add(accuracy)
                continue
            choosy.remove(pending)
            decisions.append(self._assign_in_time(state, pending))
        return decisions

    def _assign_from(self, queue: RequestQueue, *, before: float = math.inf) -> list[Decision]:
        """Assign a queue's requests in order, as far as they came `before` a request."""
        decisions: list[Decision] = []
        returned = queue is self._waiting.returned
        alike = not returned and not self._pool.by_prompt  # an instance suits all or none
        state: InstanceState | None = None
        while queue.places and (first := queue.front(1)[0]).order < before:
            state = state or self._pool.free(first, self.now_s)
            if state is None:
                break
            decision = self._assign_in_time(state, queue.pop())
            decisions.append(decision)
            if not (alike and isinstance(decision, Fail)):
                state = None
        return decisions

    def _assign_in_time(self, state: InstanceState, pending: PendingRequest) -> Decision:
        """Assign a request to an instance, or end it where that would be too late.

        It is not worth an instance's time where none could answer in time; where another one could,
        this one may try. An idle instance takes any request whose deadline has not passed: no other
        request loses by that, and it shows whether the instance is still as slow as it was.
        """
        left_s = pending.request.deadline_s - self.now_s
        soonest_s = self._pool.capacity(self.now_s, self.routes.slo_latency_s).soonest_s
        if left_s <= 0 or (left_s < soonest_s and state.in_flight):
            return fail(pending, self._waiting.too_late(pending, self.now_s))
        self._pool.hold(state, pending, self.now_s)
        return Send(state.instance, pending)

    def _forget(self, pending: PendingRequest) -> None:
        """Remove a request from where it waits; nothing happens where it does not."""
        self._waiting.remove(pending)
        self.filler.queue.remove(pending)

    def _end_hopeless(self) -> Iterator[Decision]:
        """End waiting requests that require an accuracy which no variant has any more."""
        for pending in (*self._waiting.returned, *self._waiting.choosy, *self.filler.queue):
            error: ServiceError | None = too_inaccurate(self.routes, pending)
            if error is None and pending.refusals and not self._pool.left_for(pending):
                error = pending.last_refusal()
            if error is not None:
                self._forget(pending)
                yield fail(pending, error)

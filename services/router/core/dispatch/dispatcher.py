"""One model's queue and instances: a state machine that returns decisions as data.

A pure state machine: each event returns the decisions it leads to, in order, for the caller to
execute. It reads no clock and does no I/O, so the simulator runs the same code.

    offer ──> waiting ──Send──> with an instance ──result──> Reply
                 ^                     │
                 └──── died, drained ──┘ (or Fail, after too many attempts)

Invariants: a request is answered, failed or cancelled exactly once; an instance never holds more
requests than its credits, or twice as many where it runs batches and no instance had a credit left;
no request waits while an eligible instance has room. But requests
that a worker died with are suspects, and no instance holds two of them: if one kills its second
worker as well, it is known which, and those that were with it the first time are answered.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Final

from services.kit.errors import DeadlineExceeded, NotFound, ServiceError, Unavailable
from services.kit.request_cost import Cost
from services.router.core.balancing.weigher import CarbonSignal
from services.router.core.dispatch.admission import too_inaccurate
from services.router.core.dispatch.decisions import (
    Decision,
    Dial,
    Fail,
    Release,
    Reply,
    Send,
    fail,
)
from services.router.core.dispatch.filler import WaitingBounds
from services.router.core.dispatch.hedging import Hedging
from services.router.core.instance_state import InstanceState
from services.router.core.model import InstanceId, Limits, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.boost import ShortestFirst
from services.router.core.queue.request_queue import ByteBudget
from services.router.core.worker_port import Hello

_OVERTAKING_SLOS: Final = 10.0  # far beyond the objective: a request it protects is late anyway


class Dispatcher(Hedging):
    """Decides for the requests of one model; receives every event of them and its instances."""

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        byte_budget: ByteBudget | None = None,
        carbon: CarbonSignal | None = None,
        bounds: WaitingBounds | None = None,
    ) -> None:
        super().__init__(routes, limits, byte_budget, carbon, bounds)
        self._shortest_first = ShortestFirst(
            limits.overtaking_s or _OVERTAKING_SLOS * routes.slo_latency_s
        )
        self._broken: frozenset[str] = frozenset()
        self._retired = False

    # ---- state ---------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Requests that instances hold, cancelled ones included."""
        return sum(len(state.in_flight) for state in self.states.values())

    @property
    def ready(self) -> bool:
        """True if an instance takes requests whose pipeline can continue."""
        return any(
            state.takes_requests and state.instance.variant not in self._broken
            for state in self.states.values()
        )

    @property
    def occupied(self) -> bool:
        """True while instances are dialled or requests wait."""
        return bool(self.states or self.queue_depth or self.filler.queue.places)

    def uses_length(self, pending: PendingRequest) -> bool:
        """Return whether the predicted length of a request's answer would make a difference now.

        Waiting requests are ranked by it, or the choice of an instance counts those in flight.
        """
        if pending.request.deferrable:
            return False
        ranks = pending.holder is None and self.routes.discipline == "ssjf"
        return ranks or self.routes.instance_choice == "predicted_tokens"

    def without_adapter(self, name: str) -> Mapping[InstanceId, ServiceError]:
        """Return why each instance that has not loaded an adapter takes no request for it."""
        missing = NotFound(f"no instance that is left has the adapter {name!r} loaded")
        return {key: missing for key, each in self.states.items() if name not in each.adapters}

    def outside(self, endpoints: Container[str]) -> Mapping[InstanceId, ServiceError]:
        """Return why each instance but those at some endpoints takes no request for them."""
        wrong = Unavailable("the gateway allows none of the servers that are left")
        return {key: wrong for key in self.states if key.endpoint not in endpoints}

    @property
    def adapters(self) -> frozenset[str]:
        """Adapters that instances have loaded."""
        return frozenset().union(*(state.adapters for state in self.states.values()))

    # ---- requests ------------------------------------------------------------------------------

    def offer(self, pending: PendingRequest) -> list[Decision]:
        """Accept a request.

        Raises:
            ResourceExhausted: There is no room for it, or it could not be answered in time.
            FailedPrecondition: No variant has the accuracy that it requires.
        """
        request, pool, waiting = pending.request, self._pool, self._waiting
        queue = waiting.queue
        if request.accuracy_floor:
            queue = waiting.choosy
            if (error := too_inaccurate(self.routes, pending)) is not None:
                raise error
        self._budget.offered += 1
        self.now_s = now_s = max(self.now_s, request.arrived_s)
        if request.deferrable:
            self.filler.admit(pending, request.model)
            return self._fill()
        weighs = pool.weigher is not None and queue is waiting.queue
        if not queue.places and (state := pool.free(pending, now_s)) is not None:
            if weighs:
                queue.push(pending)
                return self._weigh()
            pool.hold(state, pending, now_s)
            return [Send(state.instance, pending)]
        capacity = pool.capacity(now_s, self.routes.slo_latency_s)
        displaced = waiting.admit(pending, capacity, now_s)
        decisions: list[Decision] = []
        if displaced is not None:
            decisions.append(fail(displaced, waiting.displaced()))
        if waiting.becomes_overloaded(capacity, now_s):
            decisions += self._refresh()
        elif queue is waiting.choosy:
            decisions += self._assign_choosy()
        elif weighs:
            decisions += self._weigh()
        return decisions

    def resume(self, pending: PendingRequest, now_s: float) -> list[Decision]:
        """Take a request that was begun elsewhere: it is never refused for lack of room."""
        self._budget.offered += 1
        self._see(now_s)
        self._take_back(pending)
        if self._retired:
            return self._expel()
        return [*self._end_hopeless(), *self._assign_waiting()]

    def give_up(self) -> list[PendingRequest]:
        """Remove every waiting request, and return them."""
        return [*self._waiting.clear(), *self.filler.queue.clear()]

    def reconsider(self, now_s: float) -> list[Decision]:
        """Decide again about requests that wait by choice, at the time that a `Reconsider` said."""
        self._see(now_s)
        self._reconsider_s = math.inf
        self.filler.woke()
        return self._assign_waiting() if self._waiting.queue.places else self._fill()

    def predict_length(
        self, pending: PendingRequest, length_decile: int, tokens: float = 0.0
    ) -> None:
        """Take the predicted length of a request's answer.

        It may come at any time, or never; a waiting request is ranked again.

        Args:
            pending: The request.
            length_decile: Decile of the length, 0 (shortest) .. 9.
            tokens: The length; 0: not known.
        """
        pending.predict_tokens(tokens)
        if pending.holder is None:
            self._shortest_first.rank(pending, length_decile)
            self._waiting.queue.reorder(pending)

    def cancel(self, pending: PendingRequest) -> list[Decision]:
        """Drop a request whose caller has gone."""
        if pending.ended:
            return []
        pending.end()
        if pending.holder is None:
            self._forget(pending)
            return []
        return self._withdraw(pending)

    def expire(self, pending: PendingRequest) -> list[Decision]:
        """End a request whose deadline has passed."""
        if pending.ended:
            return []
        if pending.holder is None and pending.request.deferrable:
            late = self.filler.expired(pending, self.routes.model)
            return [*self.cancel(pending), Fail(pending, late)]
        where = "waiting for an instance" if pending.holder is None else "being computed"
        error = DeadlineExceeded(
            f"the deadline passed while the request was {where}", reason="DEADLINE"
        )
        return [*self.cancel(pending), Fail(pending, error)]

    def part(self, instance: InstanceId, number: int, now_s: float = 0.0) -> PendingRequest | None:
        """Take a response of an instance that is not its last.

        Returns:
            The request; None: its caller has gone, or the other of two instances answers it.
        """
        state = self.states.get(instance)
        pending = state.in_flight.get(number) if state else None
        if state is None or pending is None:
            return None
        self._hear(state, now_s)
        if pending.ended or not pending.takes_answer(instance):
            return None
        pending.begin_answer(instance, self.now_s)
        if self._pool.fills and not pending.request.deferrable:
            self._pool.learn_part(state, pending, self.now_s)
        return pending

    def result(
        self,
        instance: InstanceId,
        number: int,
        *,
        refusal: ServiceError | None = None,
        now_s: float = 0.0,
        cost: Cost | None = None,
    ) -> list[Decision]:
        """Take an instance's last result for a request.

        Args:
            instance: The instance.
            number: The request's number; unknown ones are ignored.
            refusal: Why the worker did not try, as when it drains: another instance may.
            now_s: The time; 0: not given.
            cost: Cost of the request; None: not given.
        """
        state = self.states.get(instance)
        pending = state.release(number) if state else None
        if state is None or pending is None:
            return []
        self._hear(state, now_s)
        now_s = self.now_s
        state.used_at = next(self._pool.ticks)
        decisions: list[Decision] = []
        if refusal is not None:
            decisions = self._refused(state, pending, refusal)
        elif not pending.takes_answer(instance):
            pending.lose(instance)
        elif not pending.ended:
            self._pool.learn(state, pending, now_s, cost)
            pending.respond(now_s, last=True)
            decisions.append(Reply(state.instance, pending))
            if pending.hedge is not None:
                decisions += self._withdraw(pending, answered_by=instance)
            elif pending.length_decile is not None:
                self._shortest_first.learn(pending, now_s, self._pool.slots)
        waiting = self._waiting
        if waiting.queue.places or waiting.choosy.places or waiting.returned.places:
            decisions += self._assign_waiting()
        elif self.filler.queue.places:
            decisions += self._fill()
        if state.leaving:
            decisions += self._leave(state)
        return decisions

    # ---- instances -----------------------------------------------------------------------------

    def up(self, instance: InstanceId, hello: Hello, now_s: float = 0.0) -> list[Decision]:
        """Mark an instance as up: its worker's hello has come.

        Args:
            instance: The instance; unknown ones are ignored.
            hello: The worker's hello.
            now_s: The time; 0: not given.
        """
        state = self.states.get(instance)
        if state is None:
            return []
        self._see(now_s)
        self.silence.end(instance)
        state.up, state.lost, state.draining, state.credits = True, False, False, hello.credits
        state.in_batches, state.kv_tokens_per_credit = hello.in_batches, hello.kv_tokens_per_credit
        state.server, state.adapters = hello.server, frozenset(hello.adapters)
        state.prefixes.clear()
        state.used_at = next(self._pool.ticks)
        return self._refresh()

    def credits(self, instance: InstanceId, credits_: int, now_s: float = 0.0) -> list[Decision]:
        """Change the number of requests that an instance may hold, >= 1.

        Where it holds more, it gets none until it holds less.
        """
        state = self.states.get(instance)
        if state is None or not state.up:
            return []
        self._see(now_s)
        state.credits = credits_
        return self._refresh()

    def note_load(
        self, instance: InstanceId, load: tuple[int, float], now_s: float = 0.0
    ) -> list[Decision]:
        """Note requests of others at an instance's server, and until when it is full, s."""
        self._see(now_s)
        state = self.states.get(instance)
        if state is not None:
            self._pool.note_load(state, *load)
        return []

    def draining(self, instance: InstanceId, now_s: float = 0.0) -> list[Decision]:
        """Give an instance no more requests; it finishes those it holds."""
        self._see(now_s)
        state = self.states.get(instance)
        if state is not None:
            state.draining = True
        return self._refresh()

    def down(
        self, instance: InstanceId, unseen: Container[int] = (), now_s: float = 0.0
    ) -> list[Decision]:
        """Note that the stream to an instance ended: the requests it held wait again.

        A worker that drained ends its stream without a failure. Otherwise each request that it may
        have seen is a suspect.

        Args:
            instance: The instance; unknown ones are ignored.
            unseen: Numbers of requests that never left for it.
            now_s: The time; 0: not given.
        """
        state = self.states.get(instance)
        if state is None:
            return []
        self._see(now_s)
        self.silence.end(instance)
        decisions: list[Decision] = []
        for number, pending in list(state.in_flight.items()):
            state.release(number)
            if number not in unseen and not state.draining:
                pending.count_death()
            decisions += self._return(pending, state, unseen=number in unseen)
        state.lost = not state.draining
        state.up = state.draining = False
        return [*decisions, *self._refresh(), *self._leave(state)]

    def close(
        self, broken: frozenset[str], full: frozenset[str], now_s: float = 0.0
    ) -> list[Decision]:
        """Close the variants whose pipeline cannot continue, and no others.

        Args:
            broken: Variants whose next stage cannot be reached.
            full: Variants whose next stage has a long queue.
            now_s: The time; 0: not given.
        """
        closed, self._broken = broken | full, broken
        if closed == self._pool.closed:
            return []
        self._see(now_s)
        self._pool.closed = closed
        return self._refresh()

    def swap(self, routes: ModelRoutes, now_s: float = 0.0) -> list[Decision]:
        """Take over a new routing table's entry for this model: instances, and policies."""
        self._see(now_s)
        self.routes, self._retired = routes, False
        decisions: list[Decision] = []
        for state in self._pool.mark_leaving(routes.instances):
            decisions += self._leave(state)
        decisions += [Dial(instance) for instance in self._pool.add(routes.instances)]
        return [*decisions, *self._refresh()]

    def retire(self) -> list[Decision]:
        """Remove the model: waiting requests fail, those being computed are still answered."""
        decisions = self._expel() + self.swap(replace(self.routes, instances=()))
        self._retired = True
        return decisions

    # ---- inside --------------------------------------------------------------------------------

    def _return(
        self, pending: PendingRequest, state: InstanceState, *, unseen: bool = False
    ) -> list[Decision]:
        """Put a request back in its place, or end it where it has had too many instances.

        Where a second instance has it as well, that one continues.

        Args:
            pending: The request.
            state: The instance that did not answer it.
            unseen: The request never left for this instance.
        """
        decisions: list[Decision] = []
        if not pending.lose(state.instance.id) and not pending.ended:
            error = self._budget.refusal(
                pending,
                left=self._pool.left_for(pending),
                free=state.draining or unseen,
                retry_after_s=self.routes.slo_latency_s,
            )
            if error is None:
                self._take_back(pending)
            else:
                decisions.append(fail(pending, error))
        return [*decisions, *(self._expel() if self._retired else self._end_hopeless())]

    def _refused(
        self, state: InstanceState, pending: PendingRequest, refusal: ServiceError
    ) -> list[Decision]:
        """Take a request back that an instance did not try."""
        if not state.draining:
            self._pool.refuse(state, pending, refusal, self.now_s)
        return self._return(pending, state)

    def _take_back(self, pending: PendingRequest) -> None:
        """Queue a request that was begun, or that no instance has answered."""
        if pending.request.deferrable:
            self.filler.queue.push(pending)
        else:
            self._waiting.push(pending)

    def _expel(self) -> list[Decision]:
        why = f"model {self.routes.model!r} is no longer served"
        return [fail(each, NotFound(why, reason="MODEL_REMOVED")) for each in self.give_up()]

    def _leave(self, state: InstanceState) -> list[Decision]:
        """Release an instance that left the table and holds nothing."""
        if not state.leaving or state.in_flight or state.instance.id not in self.states:
            return []
        del self.states[state.instance.id]
        return [Release(state.instance)]

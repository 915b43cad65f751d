"""One model's queue and instances: what happens next, as data.

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

from collections.abc import Container, Iterable
from dataclasses import replace

from services.kit.errors import DeadlineExceeded, NotFound
from services.kit.request_cost import Cost
from services.router.core.balancing.weigher import CarbonSignal
from services.router.core.dispatch.admission import Admission, too_inaccurate
from services.router.core.dispatch.assigner import Assigner
from services.router.core.dispatch.decisions import Decision, Dial, Fail, Release, Withdraw, fail
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.dispatch.retry_hedge import RetryHedge
from services.router.core.instance_state import InstanceState
from services.router.core.model import InstanceId, Limits, ModelRoutes
from services.router.core.pending_request import PendingRequest
from services.router.core.queue.boost import ShortestFirst
from services.router.core.queue.request_queue import ByteBudget
from services.router.core.worker_port import Hello


class Dispatcher:
    """Decides for the requests of one model.

    Attributes:
        states: Every instance that is dialled, by identity.
        overload: Whether it has more requests than it can answer.
        now_s: The newest time given by any event.
    """

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        byte_budget: ByteBudget | None = None,
        carbon: CarbonSignal | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self._pool = InstancePool(routes.instance_choice, carbon)
        self.states = self._pool.states
        self._admission = Admission(routes, limits, byte_budget or ByteBudget())
        self.overload = self._admission.overload
        self._assigner = Assigner(self._admission, self._pool, routes)
        self._queue = self._admission.queue
        self._retry_hedge = RetryHedge(self._admission, self._pool, limits)
        self._shortest_first = ShortestFirst(limits.overtaking_s)
        self._broken: frozenset[str] = frozenset()
        self._retired = False
        # The newest time given by any event. Late is safe: requests are then given up later.
        self.now_s = 0.0

    # ---- state ---------------------------------------------------------------------------------

    @property
    def queue_depth(self) -> int:
        """Requests that wait for an instance."""
        return self._admission.depth

    @property
    def in_flight(self) -> int:
        """Requests that instances hold, cancelled ones included."""
        return sum(len(state.in_flight) for state in self.states.values())

    @property
    def ready(self) -> bool:
        """Whether an instance takes requests that can go on through their pipeline."""
        return any(
            state.takes_requests and state.instance.variant not in self._broken
            for state in self.states.values()
        )

    @property
    def slots(self) -> int:
        """Requests that instances may hold together."""
        return self._pool.slots

    @property
    def occupied(self) -> bool:
        """Whether instances are dialled, or requests wait."""
        return bool(self.states or self.queue_depth)

    def uses_length(self, pending: PendingRequest) -> bool:
        """Return whether the predicted length of a request's answer would make a difference now.

        Waiting requests are ranked by it, or the choice of an instance counts those in flight.
        """
        ranks = pending.holder is None and self.routes.discipline == "ssjf"
        return ranks or self.routes.instance_choice == "predicted_tokens"

    # ---- requests ------------------------------------------------------------------------------

    def offer(self, pending: PendingRequest) -> list[Decision]:
        """Accept a request.

        Raises:
            ResourceExhausted: There is no room for it, or it could not be answered in time.
            FailedPrecondition: No variant has the accuracy that it requires.
        """
        if (error := too_inaccurate(self.routes, pending)) is not None:
            raise error
        self._retry_hedge.offered += 1
        self.now_s = max(self.now_s, pending.request.arrived_s)
        choosy = pending.request.accuracy_floor > 0
        weighs = self._assigner.weighs and not choosy
        if not self._admission.queue_of(pending):
            state = self._pool.free(pending=pending)
            if state is not None and weighs:
                self._queue.push(pending)
                return self._assigner.weigh(self.now_s)
            if state is not None:
                return [self._assigner.assign(state, pending, self.now_s)]
        displaced = self._admission.admit(pending, self._pool, self.now_s)
        if self._admission.becomes_overloaded(self._pool, self.now_s):
            return [*self._end_displaced(displaced), *self._refresh()]
        decisions = self._end_displaced(displaced)
        if choosy:
            decisions += self._assigner.assign_choosy(self.now_s)
        elif weighs:
            decisions += self._assigner.weigh(self.now_s)
        return decisions

    def resume(self, pending: PendingRequest, now_s: float) -> list[Decision]:
        """Take a request that was begun elsewhere: it is never refused for lack of room."""
        self._retry_hedge.offered += 1
        self._see(now_s)
        self._admission.queue_of(pending).push(pending)
        if self._retired:
            return self._expel()
        return [*self._assigner.end_hopeless(), *self._assigner.assign_waiting(self.now_s)]

    def give_up(self) -> list[PendingRequest]:
        """Remove every waiting request, and return them."""
        return self._admission.clear()

    def reconsider(self, now_s: float) -> list[Decision]:
        """Decide again about requests that wait by choice, at the time that a `Reconsider` said."""
        self._see(now_s)
        return self._assigner.reconsider(self.now_s)

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
            self._queue.reorder(pending)

    def cancel(self, pending: PendingRequest) -> list[Decision]:
        """Drop a request whose caller has gone."""
        if pending.ended:
            return []
        pending.end()
        if pending.holder is None:
            self._admission.remove(pending)
            return []
        return [
            Withdraw(self.states[key].instance, pending)
            for key in (pending.holder, pending.hedge)
            if key is not None
        ]

    def expire(self, pending: PendingRequest) -> list[Decision]:
        """End a request whose deadline has passed."""
        if pending.ended:
            return []
        where = "waiting for an instance" if pending.holder is None else "being computed"
        error = DeadlineExceeded(
            f"the deadline passed while the request was {where}", reason="DEADLINE"
        )
        return [*self.cancel(pending), Fail(pending, error)]

    def hedge(self, pending: PendingRequest, now_s: float = 0.0) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        The first to answer wins; the request is withdrawn from the other.
        """
        self._see(now_s)
        return self._retry_hedge.hedge(pending, self.now_s)

    def part(self, instance: InstanceId, number: int, now_s: float = 0.0) -> PendingRequest | None:
        """Take a response of an instance that is not its last.

        Returns:
            The request; None: its caller has gone, or the other of two instances answers it.
        """
        state = self.states.get(instance)
        pending = state.in_flight.get(number) if state else None
        if pending is None or pending.ended:
            return None
        if pending.answering and pending.holder != instance:
            return None
        self._see(now_s)
        pending.begin_answer(instance, self.now_s)
        return pending

    def result(
        self,
        instance: InstanceId,
        number: int,
        *,
        refused: bool,
        now_s: float = 0.0,
        cost: Cost | None = None,
    ) -> list[Decision]:
        """Take an instance's last result for a request.

        Args:
            instance: The instance.
            number: The request's number; unknown ones are ignored.
            refused: The worker did not try, as when it drains: another instance may.
            now_s: The time; 0: not given.
            cost: What the request took; None: not given.
        """
        state = self.states.get(instance)
        pending = state.release(number) if state else None
        if state is None or pending is None:
            return []
        self._see(now_s)
        self._pool.touch(state)
        decisions: list[Decision] = []
        if refused:
            decisions += self._return(pending, state)
        elif not pending.ended and (not pending.answering or pending.holder == instance):
            self._pool.learn(state, pending, self.now_s - pending.assigned_s, cost)
            decisions += self._answer(pending, state)
        if self._admission.depth:
            decisions += self._assigner.assign_waiting(self.now_s)
        return [*decisions, *self._leave(state)] if state.leaving else decisions

    # ---- instances -----------------------------------------------------------------------------

    def up(self, instance: InstanceId, hello: Hello, now_s: float = 0.0) -> list[Decision]:
        """Note that an instance's worker said hello.

        Args:
            instance: The instance; unknown ones are ignored.
            hello: What the worker said.
            now_s: The time; 0: not given.
        """
        state = self.states.get(instance)
        if state is None:
            return []
        self._see(now_s)
        state.up, state.draining, state.credits = True, False, hello.credits
        state.in_batches, state.kv_tokens_per_credit = hello.in_batches, hello.kv_tokens_per_credit
        state.prefixes.clear()
        self._pool.touch(state)
        return self._refresh()

    def credits(self, instance: InstanceId, credits_: int, now_s: float = 0.0) -> list[Decision]:
        """Let an instance hold another number of requests from now on, >= 1.

        Where it holds more, it gets none until it holds less.
        """
        state = self.states.get(instance)
        if state is None or not state.up:
            return []
        self._see(now_s)
        state.credits = credits_
        return self._refresh()

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
        decisions: list[Decision] = []
        for number, pending in list(state.in_flight.items()):
            state.release(number)
            if number not in unseen and not state.draining:
                pending.count_death()
            decisions += self._return(pending, state, unseen=number in unseen)
        state.up = state.draining = False
        return [*decisions, *self._refresh(), *self._leave(state)]

    def close(
        self, broken: frozenset[str], full: frozenset[str], now_s: float = 0.0
    ) -> list[Decision]:
        """Let only such variants take requests that can go on with them.

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

    def _see(self, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)

    def _refresh(self) -> list[Decision]:
        return self._assigner.refresh(self.routes, self.now_s)

    def _answer(self, pending: PendingRequest, state: InstanceState) -> Iterable[Decision]:
        pending.answer(self.now_s)
        state.answered += 1
        if pending.hedge is None:
            state.latency.observe(self.now_s - pending.assigned_s, pending.load)
            self._shortest_first.learn(pending, self.now_s, self._pool.slots)
        return self._retry_hedge.settle(pending, state)

    def _end_displaced(self, pending: PendingRequest | None) -> list[Decision]:
        return [] if pending is None else [fail(pending, self._admission.displaced())]

    def _return(
        self, pending: PendingRequest, state: InstanceState, *, unseen: bool = False
    ) -> Iterable[Decision]:
        decisions = self._retry_hedge.retry(
            pending, state, unseen=unseen, retry_after_s=self.routes.slo_latency_s
        )
        ended = self._expel() if self._retired else self._assigner.end_hopeless()
        return [*decisions, *ended]

    def _expel(self) -> list[Decision]:
        why = f"model {self.routes.model!r} is no longer served"
        return [fail(each, NotFound(why, reason="MODEL_REMOVED")) for each in self.give_up()]

    def _leave(self, state: InstanceState) -> Iterable[Decision]:
        """Release an instance that left the table and holds nothing."""
        if not state.leaving or state.in_flight or state.instance.id not in self.states:
            return ()
        del self.states[state.instance.id]
        return (Release(state.instance),)

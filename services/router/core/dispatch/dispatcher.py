"""One model's queue and instances: what happens next, as data.

A pure state machine: each event returns the decisions it leads to, in order, for the caller to
carry out. It reads no clock and does no I/O, so the simulator runs the same code.

    offer ──> waiting ──Send──> with an instance ──result──> Reply
                 ^                     │
                 └──── died, drained ──┘ (or Fail, where the request has met too many)

Invariants: a request is answered, failed or abandoned exactly once; an instance never holds more
than its credits; nothing waits while an eligible instance has a credit. But requests that a worker
died with are suspects, and no instance holds two of them: if one kills its second worker, too, it
is known which, and those that were with it the first time are answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from services.kit.errors import DeadlineExceeded, NotFound
from services.router.core.balancing.weigher import Grid
from services.router.core.dispatch.admission import Admission
from services.router.core.dispatch.assigner import Assigner
from services.router.core.dispatch.decisions import Decision, Dial, Fail, Release, Withdraw
from services.router.core.dispatch.instance_pool import InstancePool
from services.router.core.dispatch.overload import Overload
from services.router.core.dispatch.retry_hedge import RetryHedge
from services.router.core.instance_state import InstanceState
from services.router.core.model import InstanceId, Limits, ModelRoutes, Request
from services.router.core.queue.byte_budget import ByteBudget
from services.router.core.queue.ssjf import ShortestFirst


class Dispatcher:
    """Decides for the requests of one model."""

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        byte_budget: ByteBudget | None = None,
        grid: Grid | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self._pool = InstancePool(routes.instance_choice, grid=grid)
        self._admission = Admission(routes, limits, byte_budget or ByteBudget())
        self._assigner = Assigner(self._admission, self._pool, routes)
        self._queue = self._admission.queue
        self._suspects = self._admission.suspects
        self._retry_hedge = RetryHedge(self._admission, self._pool, limits)
        self._shortest = ShortestFirst(limits.overtaking_s)
        self._offered = 0
        self._broken: frozenset[str] = frozenset()
        self._retired = False
        # The newest time that was told. Late is safe: what waits is then given up later.
        self._now_s = 0.0

    # ---- what can be asked ---------------------------------------------------------------------

    @property
    def states(self) -> dict[InstanceId, InstanceState]:
        """Every instance that is dialled."""
        return self._pool.states

    @property
    def queue_depth(self) -> int:
        """Requests that wait for an instance."""
        return len(self._queue) + len(self._suspects)

    @property
    def in_flight(self) -> int:
        """Requests that instances hold, abandoned ones included."""
        return sum(len(state.in_flight) for state in self.states.values())

    @property
    def ready(self) -> bool:
        """Some instance takes requests, and what it begins can go on."""
        return any(
            state.takes_work and state.instance.variant not in self._broken
            for state in self.states.values()
        )

    @property
    def slots(self) -> int:
        """Requests that instances may hold together."""
        return self._pool.slots

    @property
    def occupied(self) -> bool:
        """There are instances that are dialled, or requests that wait."""
        return bool(self.states or self.queue_depth)

    @property
    def overload(self) -> Overload:
        """Whether it has more to do than it gets done."""
        return self._admission.overload

    @property
    def predicts_lengths(self) -> bool:
        """Its discipline asks for lengths of answers."""
        return self.routes.discipline == "ssjf"

    @property
    def now_s(self) -> float:
        """The newest time that it was told."""
        return self._now_s

    # ---- requests ------------------------------------------------------------------------------

    def offer(self, request: Request) -> list[Decision]:
        """Accept a request.

        Raises:
            ResourceExhausted: There is no room for it, or it could not be answered in time.
        """
        self._offered += 1
        self._now_s = max(self._now_s, request.arrived_s)
        weighs = self._assigner.weighs
        if not self._queue:
            state = self._pool.free()
            if state is not None and weighs:
                self._queue.push(request)
                return self._assigner.weigh(self._now_s)
            if state is not None:
                return [self._assigner.give(state, request, self._now_s)]
        displaced = self._admission.admit(request, self._pool, self._now_s)
        if self._admission.overloads_at(self._pool, self._now_s):
            return [*self._end_displaced(displaced), *self._refresh()]
        return [
            *self._end_displaced(displaced),
            *(self._assigner.weigh(self._now_s) if weighs else ()),
        ]

    def resume(self, request: Request, now_s: float) -> list[Decision]:
        """Take a request that was begun elsewhere: it is never refused for want of room."""
        self._offered += 1
        self._now_s = max(self._now_s, now_s)
        self._queue.push(request)
        return self._expel() if self._retired else self._assigner.assign(self._now_s)

    def give_up(self) -> list[Request]:
        """Let go of everything that waits, and return it."""
        return [*self._suspects.clear(), *self._queue.clear()]

    def reconsider(self, now_s: float) -> list[Decision]:
        """Decide anew for what waits by choice; at the time that a `Look` said."""
        self._now_s = max(self._now_s, now_s)
        return self._assigner.reconsider(self._now_s)

    def reorder(self, request: Request) -> None:
        """Give a request that waits its place anew: what its discipline looks at has changed."""
        self._queue.reorder(request)

    def foretell(self, request: Request, length_class: int) -> None:
        """Take in how long a request's answer will be: its class, 0 (shortest) .. 9.

        It may come at any time, or never; what waits takes its place anew.
        """
        self._shortest.foretell(request, length_class)
        self._queue.reorder(request)

    def cancel(self, request: Request) -> list[Decision]:
        """Forget a request whose caller has gone."""
        if request.over:
            return []
        request.over = True
        if request.holder is None:
            self._queue.remove(request)
            self._suspects.remove(request)
            return []
        return [
            Withdraw(self.states[key].instance, request)
            for key in (request.holder, request.hedge)
            if key is not None
        ]

    def expire(self, request: Request) -> list[Decision]:
        """End a request whose deadline has passed."""
        if request.over:
            return []
        where = "waiting for an instance" if request.holder is None else "being computed"
        error = DeadlineExceeded(
            f"the deadline passed while the request was {where}", reason="DEADLINE"
        )
        return [*self.cancel(request), Fail(request, error)]

    def held(self, instance: InstanceId, number: int) -> Request | None:
        """Return a request that an instance begins or goes on to answer in parts.

        Of two that have it, the first to begin answers it.
        """
        state = self.states.get(instance)
        request = state.in_flight.get(number) if state else None
        if request is None or request.over or (request.begun and request.holder != instance):
            return None
        if request.hedge == instance:
            request.holder, request.hedge = instance, request.holder
        return request

    def result(
        self,
        instance: InstanceId,
        number: int,
        *,
        refused: bool,
        now_s: float = 0.0,
        energy_j: float = 0.0,
    ) -> list[Decision]:
        """An instance is done with a request.

        Args:
            instance: It.
            number: The request's; unknown ones are ignored.
            refused: It did not try, as when it drains: another instance may.
            now_s: When; 0: not told.
            energy_j: Active energy of it; 0: not told.
        """
        state = self.states.get(instance)
        request = state.in_flight.pop(number, None) if state else None
        if state is None or request is None:
            return []
        self._now_s = max(self._now_s, now_s)
        self._pool.touch(state)
        decisions: list[Decision] = []
        if refused:
            decisions += self._return(request, state)
        elif not request.over and (not request.begun or request.holder == instance):
            self._pool.learn(state, request, self._now_s - request.sent_s, energy_j)
            decisions += self._answer(request, state)
        if self._queue or self._suspects:
            decisions += self._assigner.assign(self._now_s)
        return [*decisions, *self._leave(state)] if state.leaving else decisions

    def hedge(self, request: Request) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        The first to answer does; the other is told that its work is not wanted.
        """
        return self._retry_hedge.hedge(request, self._offered)

    # ---- instances -----------------------------------------------------------------------------

    def up(self, instance: InstanceId, credits_: int) -> list[Decision]:
        """An instance said hello.

        Args:
            instance: It; unknown ones are ignored.
            credits_: Requests it may hold, >= 1.
        """
        state = self.states.get(instance)
        if state is None:
            return []
        state.up, state.draining, state.credits = True, False, credits_
        self._pool.touch(state)
        return self._refresh()

    def credits(self, instance: InstanceId, credits_: int) -> list[Decision]:
        """An instance may hold another number of requests from now on, >= 1.

        Where it holds more, it gets none until it holds less.
        """
        state = self.states.get(instance)
        if state is None or not state.up:
            return []
        state.credits = credits_
        return self._refresh()

    def draining(self, instance: InstanceId) -> list[Decision]:
        """An instance takes no more work; it finishes what it holds."""
        state = self.states.get(instance)
        if state is not None:
            state.draining = True
        return self._refresh()

    def down(self, instance: InstanceId) -> list[Decision]:
        """The stream to an instance ended: what it held and did not answer waits again.

        A worker that drained has said so and ended its stream: that is nobody's fault. Otherwise
        each request that it may have seen is a suspect.
        """
        state = self.states.get(instance)
        if state is None:
            return []
        decisions: list[Decision] = []
        held, state.in_flight = state.in_flight, {}
        for request in held.values():
            request.deaths += request.sent and not state.draining
            decisions += self._return(request, state)
        state.up = state.draining = False
        return [*decisions, *self._refresh(), *self._leave(state)]

    def close(self, broken: frozenset[str], full: frozenset[str]) -> list[Decision]:
        """Let only such variants take requests that can go on with them.

        Args:
            broken: Variants whose next stage cannot be reached.
            full: Variants whose next stage has enough to do.
        """
        closed, self._broken = broken | full, broken
        if closed == self._pool.closed:
            return []
        self._pool.closed = closed
        return self._refresh()

    def swap(self, routes: ModelRoutes) -> list[Decision]:
        """Take over a new routing table's entry for this model: instances, and policies."""
        self.routes, self._retired = routes, False
        decisions: list[Decision] = []
        for state in self._pool.keep(routes.instances):
            decisions += self._leave(state)
        decisions += [Dial(instance) for instance in self._pool.add(routes.instances)]
        return [*decisions, *self._refresh()]

    def retire(self) -> list[Decision]:
        """The model is gone: what waits fails, what is being computed is still answered."""
        decisions = self._expel() + self.swap(replace(self.routes, instances=()))
        self._retired = True
        return decisions

    # ---- inside --------------------------------------------------------------------------------

    def _refresh(self) -> list[Decision]:
        return self._assigner.refresh(self.routes, self._now_s)

    def _answer(self, request: Request, state: InstanceState) -> Iterable[Decision]:
        request.over = True
        state.answered += 1
        if request.hedge is None:
            hold_s = self._now_s - request.sent_s
            state.latency.observe(hold_s, request.place)
            self._shortest.learn(request, self._now_s, self._pool.slots)
        return self._retry_hedge.settle(request, state)

    def _end_displaced(self, request: Request | None) -> list[Decision]:
        if request is None:
            return []
        request.over = True
        return [Fail(request, self._admission.displaced())]

    def _return(self, request: Request, state: InstanceState) -> Iterable[Decision]:
        decisions = self._retry_hedge.retry(
            request, state, self._offered, self.routes.slo_latency_s
        )
        return [*decisions, *self._expel()] if self._retired else decisions

    def _expel(self) -> list[Decision]:
        expelled: list[Decision] = []
        for request in self.give_up():
            request.over = True
            error = NotFound(f"model {request.model!r} is no longer served", reason="MODEL_REMOVED")
            expelled.append(Fail(request, error))
        return expelled

    def _leave(self, state: InstanceState) -> Iterable[Decision]:
        """Let go of an instance that left the table and holds nothing."""
        if not state.leaving or state.in_flight or state.instance.id not in self.states:
            return ()
        del self.states[state.instance.id]
        return (Release(state.instance),)

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

import math
from collections.abc import Iterable
from dataclasses import replace

from services.kit.errors import DeadlineExceeded, NotFound
from services.router.carbondis.lanes import MOST, Grid
from services.router.decisions import Decision, Dial, Fail, Look, Release, Reply, Send, Withdraw
from services.router.domain import (
    InstanceId,
    Limits,
    ModelRoutes,
    Request,
)
from services.router.lane import Lane
from services.router.pressure import Pressure
from services.router.queueing import Queue
from services.router.retries import Retries
from services.router.roster import Roster
from services.router.space import Space
from services.router.ssjf import ShortestFirst
from services.router.waiting import WaitingRoom


class Dispatcher:
    """Decides for the requests of one model."""

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        space: Space | None = None,
        grid: Grid | None = None,
    ) -> None:
        self.routes = routes
        self.limits = limits
        self._roster = Roster(routes.instance_choice, grid=grid)
        self._look_s = math.inf
        self._room = WaitingRoom(routes, limits, space or Space())
        self._queue = self._room.queue
        self._suspects = self._room.suspects
        self._retries = Retries(limits)
        self._shortest = ShortestFirst(limits.overtaking_s)
        self._offered = 0
        # The newest time that was told. Late is safe: what waits is then given up later.
        self._now_s = 0.0

    # ---- what can be asked ---------------------------------------------------------------------

    @property
    def lanes(self) -> dict[InstanceId, Lane]:
        """Every instance that is dialled."""
        return self._roster.lanes

    @property
    def queue_depth(self) -> int:
        """Requests that wait for an instance."""
        return len(self._queue) + len(self._suspects)

    @property
    def in_flight(self) -> int:
        """Requests that instances hold, abandoned ones included."""
        return sum(len(lane.in_flight) for lane in self.lanes.values())

    @property
    def ready(self) -> bool:
        """Some instance takes requests."""
        return bool(self._roster.eligible)

    @property
    def pressure(self) -> Pressure:
        """Whether it has more to do than it gets done."""
        return self._room.pressure

    @property
    def foretells(self) -> bool:
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
        if self.foretells:
            self._shortest.arrive(self._now_s, self._roster.slots)
        weighs = self._roster.weigher is not None
        if not self._queue:
            lane = self._roster.free()
            if lane is not None and weighs:
                self._queue.push(request)
                return self._weigh()
            if lane is not None:
                return [self._give(lane, request)]
        displaced = self._room.admit(request, self._roster, self._now_s)
        if self._room.presses(self._roster, self._now_s):
            return [*self._end_displaced(displaced), *self._refresh()]
        return [*self._end_displaced(displaced), *(self._weigh() if weighs else ())]

    def look(self, now_s: float) -> list[Decision]:
        """Decide anew for what waits by choice; at the time that a `Look` said."""
        self._now_s, self._look_s = max(self._now_s, now_s), math.inf
        return self._assign() if self._queue else []

    def reorder(self, request: Request) -> None:
        """Give a request that waits its place anew: what its discipline looks at has changed."""
        self._queue.reorder(request)

    def foretell(self, request: Request, length_class: int) -> None:
        """Take in how long a request's answer will be: its class, 0 (shortest) .. 4.

        It may come at any time, or never; what waits takes its place anew.
        """
        self._shortest.foretell(request, length_class)
        self._queue.reorder(request)

    def abandon(self, request: Request) -> list[Decision]:
        """Forget a request whose caller has gone."""
        if request.over:
            return []
        request.over = True
        if request.holder is None:
            self._queue.remove(request)
            self._suspects.remove(request)
            return []
        return [
            Withdraw(self.lanes[key].instance, request)
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
        return [*self.abandon(request), Fail(request, error)]

    def held(self, instance: InstanceId, number: int) -> Request | None:
        """Return a request that an instance begins or goes on to answer in parts.

        Of two that have it, the first to begin answers it.
        """
        lane = self.lanes.get(instance)
        request = lane.in_flight.get(number) if lane else None
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
        lane = self.lanes.get(instance)
        request = lane.in_flight.pop(number, None) if lane else None
        if lane is None or request is None:
            return []
        self._now_s = max(self._now_s, now_s)
        self._roster.touch(lane)
        decisions: list[Decision] = []
        if refused:
            decisions += self._return(request, lane)
        elif not request.over and (not request.begun or request.holder == instance):
            self._roster.learn(lane, request, self._now_s - request.sent_s, energy_j)
            decisions += self._answer(request, lane)
        if self._queue or self._suspects:
            decisions += self._assign()
        return [*decisions, *self._leave(lane)] if lane.leaving else decisions

    def hedge(self, request: Request) -> list[Decision]:
        """Give a request that takes long to a second instance as well.

        Only where one has a free credit that nobody waits for, and within the budget for retries.
        The first to answer does; the other is told that its work is not wanted.
        """
        if request.over or request.begun or request.holder is None or request.hedge is not None:
            return []
        lane = (
            None
            if self.queue_depth or request.deaths
            else self._roster.free(besides=request.holder)
        )
        if lane is None or not self._retries.take(self._offered):
            return []
        request.hedge = lane.instance.id
        self._roster.give(lane, request)
        return [Send(lane.instance, request)]

    # ---- instances -----------------------------------------------------------------------------

    def up(self, instance: InstanceId, credits_: int) -> list[Decision]:
        """An instance said hello.

        Args:
            instance: It; unknown ones are ignored.
            credits_: Requests it may hold, >= 1.
        """
        lane = self.lanes.get(instance)
        if lane is None:
            return []
        lane.up, lane.draining, lane.credits = True, False, credits_
        self._roster.touch(lane)
        return self._refresh()

    def credits(self, instance: InstanceId, credits_: int) -> list[Decision]:
        """An instance may hold another number of requests from now on, >= 1.

        Where it holds more, it gets none until it holds less.
        """
        lane = self.lanes.get(instance)
        if lane is None or not lane.up:
            return []
        lane.credits = credits_
        return self._refresh()

    def draining(self, instance: InstanceId) -> list[Decision]:
        """An instance takes no more work; it finishes what it holds."""
        lane = self.lanes.get(instance)
        if lane is not None:
            lane.draining = True
        return self._refresh()

    def down(self, instance: InstanceId) -> list[Decision]:
        """The stream to an instance ended: what it held and did not answer waits again.

        A worker that drained has said so and ended its stream: that is nobody's fault. Otherwise
        each request that it may have seen is a suspect.
        """
        lane = self.lanes.get(instance)
        if lane is None:
            return []
        decisions: list[Decision] = []
        held, lane.in_flight = lane.in_flight, {}
        for request in held.values():
            request.deaths += request.sent and not lane.draining
            decisions += self._return(request, lane)
        lane.up = lane.draining = False
        return [*decisions, *self._refresh(), *self._leave(lane)]

    def swap(self, routes: ModelRoutes) -> list[Decision]:
        """Take over a new routing table's entry for this model: instances, and policies."""
        self.routes = routes
        decisions: list[Decision] = []
        for lane in self._roster.keep(routes.instances):
            decisions += self._leave(lane)
        decisions += [Dial(instance) for instance in self._roster.add(routes.instances)]
        return [*decisions, *self._refresh()]

    def retire(self) -> list[Decision]:
        """The model is gone: what waits fails, what is being computed is still answered."""
        gone: list[Decision] = []
        for request in (*self._suspects.clear(), *self._queue.clear()):
            request.over = True
            error = NotFound(f"model {request.model!r} is no longer served", reason="MODEL_REMOVED")
            gone.append(Fail(request, error))
        return gone + self.swap(replace(self.routes, instances=()))

    # ---- inside --------------------------------------------------------------------------------

    def _refresh(self) -> list[Decision]:
        """Find out who may take work now, and give it."""
        self._room.arrange(self.routes)
        self._roster.refresh(self.routes.instance_choice, pressed=self.pressure.on)
        return self._assign()

    def _assign(self) -> list[Decision]:
        """Give what waits to who has a credit; what waited in vain ends without taking one."""
        decisions = self._assign_from(self._suspects, unsuspected=True) if self._suspects else []
        weighs = self._roster.weigher is not None
        decisions += self._weigh() if weighs else self._assign_from(self._queue)
        if self.pressure.on and not self._queue:
            self.pressure.end(self._now_s)
            return [*decisions, *self._refresh()]
        return decisions

    def _assign_from(self, queue: Queue, *, unsuspected: bool = False) -> list[Decision]:
        decisions: list[Decision] = []
        lane: Lane | None = None
        while queue:
            lane = lane or self._roster.free(unsuspected=unsuspected)
            if lane is None:
                return decisions
            request = queue.pop()
            given = self._give_in_time(lane, request)
            decisions.append(given)
            lane = lane if isinstance(given, Fail) else None
        return decisions

    def _weigh(self) -> list[Decision]:
        """Give what waits to the lanes that a policy picks; it may say that waiting is better."""
        weigher, slo_s = self._roster.weigher, self.routes.slo_latency_s
        decisions: list[Decision] = []
        while weigher is not None and (front := self._queue.front(MOST)):
            picked = weigher.pick(front, self._roster.eligible, self._now_s, slo_s)
            if picked.request is None or picked.lane is None:
                return [*decisions, *self._look_again(picked.again_s)]
            self._queue.remove(picked.request)
            decisions.append(self._give_in_time(picked.lane, picked.request))
        return decisions

    def _look_again(self, at_s: float | None) -> Iterable[Decision]:
        if at_s is None or self._now_s < self._look_s <= at_s:  # that one has been asked for
            return ()
        self._look_s = at_s
        return (Look(self.routes.model, at_s),)

    def _give_in_time(self, lane: Lane, request: Request) -> Decision:
        """Give a request to a lane, or end it where that is in vain."""
        error = self._room.in_vain(request, lane, self._roster, self._now_s)
        if error is None:
            return self._give(lane, request)
        request.over = True
        return Fail(request, error)

    def _give(self, lane: Lane, request: Request) -> Send:
        request.holder, request.sent = lane.instance.id, False
        request.sent_s = self._now_s
        self._roster.give(lane, request)
        return Send(lane.instance, request)

    def _answer(self, request: Request, lane: Lane) -> Iterable[Decision]:
        """End a request whose answer is here; a second worker's is not wanted any more."""
        request.over = True
        lane.answered += 1
        if request.hedge is None:
            hold_s = self._now_s - request.sent_s
            lane.pace.observe(hold_s, request.place)
            self._shortest.learn(request, hold_s)
            return (Reply(lane.instance, request),)
        key = lane.instance.id
        loser = request.hedge if request.holder == key else request.holder
        if loser is None:
            return (Reply(lane.instance, request),)
        return (Reply(lane.instance, request), Withdraw(self.lanes[loser].instance, request))

    def _end_displaced(self, request: Request | None) -> list[Decision]:
        if request is None:
            return []
        request.over = True
        return [Fail(request, self._room.displaced())]

    def _return(self, request: Request, lane: Lane) -> Iterable[Decision]:
        """Put a request back in its place, or end it where it has met too many instances.

        Where a second instance has it, too, that one goes on.
        """
        key = lane.instance.id
        answering = request.holder == key
        if request.hedge is not None:
            request.holder = request.hedge if answering else request.holder
            request.hedge = None
            if not (request.begun and answering):
                return ()
        request.holder = None
        if request.over:
            return ()
        error = self._retries.refusal(
            request,
            blameless=lane.draining or not request.sent,
            requests=self._offered,
            retry_after_s=self.routes.slo_latency_s,
        )
        if error is None:
            (self._suspects if request.deaths else self._queue).push(request)
            return ()
        request.over = True
        return (Fail(request, error),)

    def _leave(self, lane: Lane) -> Iterable[Decision]:
        """Let go of an instance that left the table and holds nothing."""
        if not lane.leaving or lane.in_flight or lane.instance.id not in self.lanes:
            return ()
        del self.lanes[lane.instance.id]
        return (Release(lane.instance),)

"""One model's queue and instances: what happens next, as data.

A pure state machine: each event returns the decisions it leads to, in order, for the caller to
carry out. It reads no clock and does no I/O, so the simulator runs the same code.

    offer ──> waiting ──Send──> with an instance ──result──> Reply
                 ^                     │
                 └──── died, drained ──┘ (or Fail, where the request has met too many)

Invariants: a request is answered, failed or abandoned exactly once; an instance never holds more
than its credits; nothing waits while an eligible instance has a credit.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from services.kit.errors import (
    DeadlineExceeded,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from services.router.choice import CHOICES
from services.router.decisions import Decision, Dial, Fail, Release, Reply, Send, Withdraw
from services.router.domain import (
    POISON_DEATHS,
    InstanceId,
    Limits,
    ModelRoutes,
    Request,
)
from services.router.lane import Lane
from services.router.queueing import Discipline, Queue, first_come_first_served


class Dispatcher:
    """Decides for the requests of one model."""

    def __init__(
        self,
        routes: ModelRoutes,
        limits: Limits,
        discipline: Discipline = first_come_first_served,
    ) -> None:
        self.routes = routes
        self.lanes: dict[InstanceId, Lane] = {}
        self._limits = limits
        self._queue = Queue(discipline)
        self._ticks = count(1)
        self._eligible: tuple[Lane, ...] = ()

    # ---- what can be asked ---------------------------------------------------------------------

    @property
    def queue_depth(self) -> int:
        """Requests that wait for an instance."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Requests that instances hold, abandoned ones included."""
        return sum(len(lane.in_flight) for lane in self.lanes.values())

    @property
    def ready(self) -> bool:
        """Some instance takes requests."""
        return bool(self._eligible)

    # ---- requests ------------------------------------------------------------------------------

    def offer(self, request: Request) -> list[Decision]:
        """Accept a request.

        Raises:
            ResourceExhausted: As many requests wait as may.
        """
        if len(self._queue) >= self._limits.max_queue:
            raise ResourceExhausted(
                f"{self._limits.max_queue} requests wait for model {self.routes.model!r},"
                " which is as many as may",
                reason="QUEUE_FULL",
                # A queue that keeps its objective has been served once by then.
                retry_after_s=self.routes.slo_latency_s,
            )
        self._queue.push(request)
        return self._assign()

    def abandon(self, request: Request) -> list[Decision]:
        """Forget a request whose caller has gone."""
        if request.over:
            return []
        request.over = True
        if request.holder is None:
            self._queue.remove(request)
            return []
        return [Withdraw(self.lanes[request.holder].instance, request)]

    def expire(self, request: Request) -> list[Decision]:
        """End a request whose deadline has passed."""
        if request.over:
            return []
        where = "waiting for an instance" if request.holder is None else "being computed"
        error = DeadlineExceeded(
            f"the deadline passed while the request was {where}", reason="DEADLINE"
        )
        return [*self.abandon(request), Fail(request, error)]

    def result(self, instance: InstanceId, number: int, *, refused: bool) -> list[Decision]:
        """An instance is done with a request.

        Args:
            instance: It.
            number: The request's; unknown ones are ignored.
            refused: It did not try, as when it drains: another instance may.
        """
        lane = self.lanes.get(instance)
        request = lane.in_flight.pop(number, None) if lane else None
        if lane is None or request is None:
            return []
        lane.used_at = next(self._ticks)
        decisions: list[Decision] = []
        if refused:
            decisions += self._return(request)
        elif not request.over:
            request.over = True
            lane.answered += 1
            decisions.append(Reply(lane.instance, request))
        return [*decisions, *self._assign(), *self._leave(lane)]

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
        lane.used_at = next(self._ticks)
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
            decisions += self._return(request)
        lane.up = lane.draining = False
        return [*decisions, *self._refresh(), *self._leave(lane)]

    def swap(self, routes: ModelRoutes) -> list[Decision]:
        """Take over a new routing table's entry for this model."""
        self.routes = routes
        wanted = {instance.id: instance for instance in routes.instances}
        decisions: list[Decision] = []
        for lane in list(self.lanes.values()):
            lane.leaving = lane.instance.id not in wanted
            decisions += self._leave(lane)
        for key, instance in wanted.items():
            if key in self.lanes:
                self.lanes[key].instance = instance
            else:
                self.lanes[key] = Lane(instance)
                decisions.append(Dial(instance))
        return [*decisions, *self._refresh()]

    def retire(self) -> list[Decision]:
        """The model is gone: what waits fails, what is being computed is still answered."""
        gone: list[Decision] = []
        for request in self._queue.clear():
            request.over = True
            error = NotFound(f"model {request.model!r} is no longer served", reason="MODEL_REMOVED")
            gone.append(Fail(request, error))
        routes = self.routes
        return gone + self.swap(
            ModelRoutes(
                routes.model, routes.slo_latency_s, routes.slo_percentile, routes.instance_choice
            )
        )

    # ---- inside --------------------------------------------------------------------------------

    def _refresh(self) -> list[Decision]:
        """Find out who may take work now, and give it.

        Instances without a share serve only where the plan's own are all gone.
        """
        working = [lane for lane in self.lanes.values() if lane.takes_work]
        shared = [lane for lane in working if lane.instance.share > 0]
        self._eligible = tuple(shared or working)
        return self._assign()

    def _assign(self) -> list[Decision]:
        choose = CHOICES[self.routes.instance_choice]
        decisions: list[Decision] = []
        while self._queue:
            free = [lane for lane in self._eligible if lane.free]
            if not free:
                break
            lane, request = choose(free), self._queue.pop()
            lane.in_flight[request.number] = request
            lane.used_at = next(self._ticks)
            request.attempts += 1
            request.holder, request.sent = lane.instance.id, False
            decisions.append(Send(lane.instance, request))
        return decisions

    def _return(self, request: Request) -> Iterable[Decision]:
        """Put a request back in its place, or end it where it has met too many instances."""
        request.holder = None
        if request.over:
            return ()
        if request.deaths >= POISON_DEATHS:
            # No retry info: the caller should not send it again by itself.
            error = Unavailable(
                f"{request.deaths} workers died while they held this request; it is not retried",
                reason="WORKERS_DIED",
            )
        elif request.attempts >= self._limits.max_attempts:
            error = Unavailable(
                f"{request.attempts} workers took this request and none could answer",
                reason="NO_WORKER_ANSWERED",
                retry_after_s=self.routes.slo_latency_s,
            )
        else:
            self._queue.push(request)
            return ()
        request.over = True
        return (Fail(request, error),)

    def _leave(self, lane: Lane) -> Iterable[Decision]:
        """Let go of an instance that left the table and holds nothing."""
        if not lane.leaving or lane.in_flight or lane.instance.id not in self.lanes:
            return ()
        del self.lanes[lane.instance.id]
        return (Release(lane.instance),)

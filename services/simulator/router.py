"""The router in virtual time: its own switchboard and dispatchers decide, this carries out.

What `services.router.runtime.engine` and its links do over gRPC, with the link's delay as a number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from simpy import Event

from services.kit.config import Deployment
from services.kit.errors import ResourceExhausted
from services.router.core.dispatch.decisions import (
    Decision,
    Dial,
    Fail,
    Reconsider,
    Release,
    Reply,
    Send,
    Withdraw,
)
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.dispatch.overload import OverloadWindow
from services.router.core.model import Instance, InstanceId, Request, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.pending_request import PendingRequest
from services.simulator.stats.sampled_intervals import Recorder
from services.simulator.timeline import Timeline
from services.simulator.worker import Worker

_DEADLINE = "DEADLINE"


class Router:
    """One router.

    Attributes:
        workers: Workers that can be dialled.
    """

    def __init__(
        self,
        deployment: Deployment,
        board: ModelRegistry,
        timeline: Timeline,
        recorder: Recorder,
        link_s: float,
    ) -> None:
        self.workers: dict[InstanceId, Worker] = {}
        self._board = board
        self._timeout_s = deployment.router.default_timeout_s
        self._time = timeline
        self._recorder = recorder
        self._link_s = link_s
        self._numbers = count(1)
        self._links: dict[InstanceId, Dispatcher] = {}
        self._gone: dict[InstanceId, Event] = {}
        # All deadlines of a model are equally far away: open requests expire in order of arrival.
        self._open: Mapping[str, deque[PendingRequest]] = {
            name: deque() for name in deployment.models
        }

    # ---- callers -------------------------------------------------------------------------------

    def ask(self, model: str) -> None:
        """Take a request."""
        now_s = self._time.now_s
        dispatcher = self._board.model(model)
        waiting = self._open[model]
        while waiting and (waiting[0].ended or waiting[0].request.deadline_s <= now_s):
            self._carry_out(dispatcher.expire(waiting.popleft()))
        timeout_s = dispatcher.limits.default_deadline_s or self._timeout_s
        request = Request(next(self._numbers), model, b"", now_s, now_s + timeout_s)
        pending = PendingRequest(request)
        try:
            decisions = dispatcher.offer(pending)
        except ResourceExhausted as error:
            self._recorder.fail(model, error.reason)
            return
        waiting.append(pending)
        self._carry_out(decisions)

    @property
    def backlog(self) -> Mapping[str, int]:
        """Requests that wait for an instance, by model."""
        return {dispatcher.routes.model: dispatcher.queue_depth for dispatcher in self._board}

    @property
    def open(self) -> Mapping[str, int]:
        """Requests that have not ended, by model."""
        return {
            name: sum(not pending.ended for pending in waiting)
            for name, waiting in self._open.items()
        }

    def pressure(self) -> Mapping[str, OverloadWindow]:
        """Return the pressure on each model since this was last asked."""
        now_s = self._time.now_s
        return {each.routes.model: each.overload.roll(now_s) for each in self._board}

    # ---- the planner ---------------------------------------------------------------------------

    def swap(self, table: RoutingTable) -> None:
        """Use a new routing table from now on."""
        self._recorder.table = table.revision
        self._carry_out(self._board.swap(table, self._time.now_s))

    def gone(self, instance: InstanceId) -> Event:
        """Return what happens when an instance holds nothing and is in no table any more."""
        return self._gone.get(instance) or self._time.env.timeout(0)

    def broken(self, instance: InstanceId) -> None:
        """A worker was ended although it held requests."""
        link = self._links.get(instance)
        if link is not None:
            self._carry_out(link.down(instance, now_s=self._time.now_s))

    # ---- workers -------------------------------------------------------------------------------

    def answered(
        self, instance: InstanceId, numbers: Sequence[int], *, expired: bool, energy_j: float
    ) -> None:
        """A worker is done with requests."""
        for number in numbers:
            link = self._links.get(instance)
            if link is None:  # released by the result before
                return
            now_s = self._time.now_s
            decisions = link.result(instance, number, refused=False, now_s=now_s, energy_j=energy_j)
            self._carry_out(decisions, expired=expired)

    # ---- inside --------------------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[Decision], *, expired: bool = False) -> None:
        for decision in decisions:
            match decision:
                case Send(instance, pending):
                    self.workers[instance.id].deliver(pending.request)
                case Reply(instance, pending):
                    if expired:
                        self._recorder.fail(instance.model, _DEADLINE)
                    else:
                        latency_s = self._time.now_s - pending.request.arrived_s
                        self._recorder.answer(instance, latency_s)
                case Fail(pending, error):
                    self._recorder.fail(pending.request.model, error.reason)
                case Dial(instance):
                    self._dial(instance)
                case Release(instance):
                    del self._links[instance.id]
                    self._gone.pop(instance.id).succeed()
                case Reconsider(model, at_s):
                    self._look_at(model, at_s)
                case Withdraw():  # the worker's own deadline tells it, too
                    pass

    def _look_at(self, model: str, at_s: float) -> None:
        due = self._time.env.timeout(max(at_s - self._time.now_s, 0.0))
        due.callbacks.append(lambda _: self._look(model))

    def _look(self, model: str) -> None:
        dispatcher = self._board.find(model)
        if dispatcher is not None:
            self._carry_out(dispatcher.reconsider(self._time.now_s))

    def _dial(self, instance: Instance) -> None:
        self._links[instance.id] = self._board.model(instance.model)
        self._gone[instance.id] = self._time.env.event()
        greeted = self._time.env.timeout(self._link_s)
        greeted.callbacks.append(lambda _: self._greet(instance))

    def _greet(self, instance: Instance) -> None:
        link = self._links.get(instance.id)
        if link is not None:
            credits_ = self.workers[instance.id].job.batch_size
            self._carry_out(link.up(instance.id, credits_, self._time.now_s))

"""The router in virtual time: its own core and decision executor, between simulated ends.

Live, callers wait on an event loop and workers are reached over gRPC; here requests come from a
list of arrivals, and workers are simulated, with the link's delay as a number.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from simpy import Event

from services.kit.config import Deployment
from services.kit.errors import ResourceExhausted, ServiceError
from services.router.core.accounting.account import Account, Ended
from services.router.core.deferrable.release import ReleasePlan
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.dispatch.overload import OverloadWindow
from services.router.core.model import Instance, InstanceId, Request, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Result
from services.router.runtime.decision_executor import DecisionExecutor
from services.simulator.stats.sampled_intervals import Recorder
from services.simulator.text_worker import TextWorker
from services.simulator.timeline import Timeline, Waiting
from services.simulator.worker import Worker

_DEADLINE = "DEADLINE"
_TOKEN_BYTES = 4  # per token of a prompt

Done = Callable[[PendingRequest, Ended], None]
"""Takes the end of a request that can wait."""

Lengths = Mapping[str, NDArray[np.int64]]
"""Tokens of each request's prompt and of its answer, by language model, shape (requests, 2)."""


class _WorkerStream(NamedTuple):
    """The stream to one worker.

    Attributes:
        instance: The worker's entry in the routing table.
        closed: Event: it holds nothing and is in no table any more.
        send: Delivers a request.
        withdraw: Withdraws a request whose caller has gone, by its number.
    """

    instance: Instance
    closed: Event
    send: Callable[[Request], None]
    withdraw: Callable[[int], None]

    def close(self) -> None:
        """End the stream."""
        self.closed.succeed()


class Router:
    """One router.

    Args:
        deployment: The simulated deployment.
        registry: The router's core.
        timeline: Requests' time.
        recorder: Records the end of each request.
        link_s: Delay from router to worker or back, s.
        request_bytes: Size of each request, without language models' prompts, bytes.
        lengths: Lengths of texts.

    Attributes:
        workers: Workers that can be connected.
        report_soon: Called when a request waits for a model without any instance.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # one argument per collaborator, all made in run.py
        self,
        deployment: Deployment,
        registry: ModelRegistry,
        timeline: Timeline,
        recorder: Recorder,
        link_s: float,
        request_bytes: int,
        lengths: Lengths,
    ) -> None:
        self.workers: dict[InstanceId, Worker | TextWorker] = {}
        self.report_soon: Callable[[], None] = lambda: None
        self._registry = registry
        self._timeout_s = deployment.router.default_timeout_s
        self._time = timeline
        self._recorder = recorder
        self._link_s = link_s
        self._body = bytes(request_bytes)
        self._lengths = lengths
        self._of_text: dict[int, tuple[int, int]] = {}  # tokens of the requests that have not ended
        self._numbers = count(1)
        self._streams: dict[InstanceId, _WorkerStream] = {}
        self._requests: dict[int, Request] = {}  # that have not ended
        self._deferrable: dict[int, tuple[PendingRequest, Done]] = {}  # of these, that can wait
        # All deadlines of a model are equally far away: open requests expire in order of arrival.
        self._arrived: Mapping[str, deque[PendingRequest]] = {
            name: deque() for name in deployment.models
        }
        self._executor = DecisionExecutor(
            registry,
            self._connect,
            open_account=lambda routes: Account(routes, lambda _: None),
            end=self._end,
            call_later=self._call_later,
            monotonic=timeline.monotonic,
        )

    # ---- callers -------------------------------------------------------------------------------

    def infer(self, model: str, index: int) -> None:
        """Accept a request.

        Args:
            model: Name of the model.
            index: Position among the model's arrivals.
        """
        now_s = self._time.monotonic()
        dispatcher = self._registry.model(model)
        arrived = self._arrived[model]
        while arrived and (arrived[0].ended or arrived[0].request.deadline_s <= now_s):
            self._executor.execute(dispatcher.expire(arrived.popleft()))
        timeout_s = dispatcher.limits.default_deadline_s or self._timeout_s
        number, body = next(self._numbers), self._body
        if model in self._lengths:
            prompt, answer = self._lengths[model][index].tolist()
            self._of_text[number] = prompt, answer
            body = bytes(len(body) + _TOKEN_BYTES * prompt)
        request = Request(number, model, body, now_s, now_s + timeout_s)
        pending = PendingRequest(request)
        self._requests[request.number] = request
        try:
            decisions = dispatcher.offer(pending)
        except ResourceExhausted as error:
            self._end(request.number, error)
            return
        arrived.append(pending)
        self._executor.execute(decisions)
        if not dispatcher.routes.instances and dispatcher.queue_depth == 1:
            self.report_soon()
        second_after_s = dispatcher.second_after_s
        if second_after_s is not None:
            self._time.env.process(self._hedge(dispatcher, pending, second_after_s))

    def infer_waiting(
        self, model: str, deadline_s: float, tokens: tuple[int, int] | None, done: Done
    ) -> None:
        """Accept a request that can wait.

        Args:
            model: Name of the model.
            deadline_s: Until when it can wait.
            tokens: Of its prompt and of its answer, if it is a text.
            done: Called when it has ended.

        Raises:
            ResourceExhausted: There is no room for it.
        """
        number, now_s, body = next(self._numbers), self._time.monotonic(), self._body
        if tokens is not None:
            self._of_text[number] = tokens
            body = bytes(len(body) + _TOKEN_BYTES * tokens[0])
        request = Request(number, model, body, now_s, deadline_s, deferrable=True, one_of_many=True)
        pending, dispatcher = PendingRequest(request), self._registry.model(model)
        try:
            decisions = dispatcher.offer(pending)
        except ResourceExhausted:
            self._of_text.pop(number, None)
            raise
        self._requests[number], self._deferrable[number] = request, (pending, done)
        self._executor.execute(decisions)
        over = self._time.env.timeout(max(deadline_s - now_s, 0.0))
        over.callbacks.append(lambda _: self._expire(pending))

    def _expire(self, pending: PendingRequest) -> None:
        if not pending.ended:
            dispatcher = self._registry.model(pending.request.model)
            self._executor.execute(dispatcher.expire(pending))

    def release(self, releases: Mapping[str, ReleasePlan]) -> None:
        """Follow a new plan for requests that can wait."""
        self._executor.execute(self._registry.release(releases, self._time.monotonic()))

    @property
    def backlog(self) -> Mapping[str, int]:
        """Number of requests that wait for an instance, by model."""
        return {dispatcher.routes.model: dispatcher.queue_depth for dispatcher in self._registry}

    @property
    def open(self) -> Mapping[str, int]:
        """Number of requests that have not ended, by model."""
        return Counter(
            dict.fromkeys(self._arrived, 0)
            | Counter(each.model for each in self._requests.values() if not each.deferrable)
        )

    def overload(self) -> Mapping[str, OverloadWindow]:
        """Return the overload of each model since the last call."""
        now_s = self._time.monotonic()
        return {each.routes.model: each.overload.roll(now_s) for each in self._registry}

    # ---- the planner ---------------------------------------------------------------------------

    def swap(self, table: RoutingTable) -> None:
        """Use a new routing table from now on."""
        self._recorder.table = table.revision
        self._executor.swap(table)

    def closed(self, instance: InstanceId) -> Event:
        """Return the event that an instance holds nothing and is in no table any more."""
        stream = self._streams.get(instance)
        return stream.closed if stream else self._time.env.timeout(0)

    def broken(self, instance: InstanceId) -> None:
        """Record that a worker was ended although it may hold requests."""
        stream = self._streams.get(instance)
        if stream is not None and not stream.closed.triggered:
            self._executor.broken(stream.instance, ())

    # ---- workers -------------------------------------------------------------------------------

    def results(self, instance: InstanceId, results: Sequence[Result]) -> None:
        """Process a worker's results: answers, first tokens of texts, expired requests."""
        self._executor.results(self._streams[instance].instance, results)

    def text_lengths(self, number: int) -> tuple[int, int]:
        """Return the tokens of an open request's prompt and of its answer."""
        return self._of_text[number]

    # ---- inside --------------------------------------------------------------------------------

    def _end(self, number: int, ended: Ended) -> bool:
        """Record the end of a request, once."""
        request = self._requests.pop(number, None)
        self._of_text.pop(number, None)
        if request is None:
            return False
        if request.deferrable:
            pending, done = self._deferrable.pop(number)
            done(pending, ended)
            return True
        if isinstance(ended, ServiceError):
            self._recorder.fail(request.model, ended.reason or _DEADLINE)
        else:
            cost = ended.result.cost
            latency_s = self._time.monotonic() - request.arrived_s
            routes = self._executor.accounts[request.model].routes
            usage = cost.usage if cost else None
            self._recorder.answer(ended.instance, routes, latency_s, usage)
        return True

    def _hedge(self, dispatcher: Dispatcher, pending: PendingRequest, after_s: float) -> Waiting:
        """Send the request to a second worker after a while, if it has not ended."""
        wait_s: float | None = after_s
        while wait_s is not None and not pending.ended:
            yield from self._time.wait(wait_s)
            self._executor.execute(dispatcher.hedge(pending, self._time.monotonic()))
            wait_s = dispatcher.hedge_again_s(pending)

    def _call_later(self, delay_s: float, call: Callable[[str], None], argument: str) -> None:
        due = self._time.env.timeout(delay_s)
        due.callbacks.append(lambda _: call(argument))

    def _connect(self, instance: Instance, listener: DecisionExecutor) -> _WorkerStream:
        worker = self.workers[instance.id]
        closed = self._time.env.event()
        stream = _WorkerStream(instance, closed, worker.deliver, worker.withdraw)
        self._streams[instance.id] = stream
        greeted = self._time.env.timeout(self._link_s)
        greeted.callbacks.append(lambda _: listener.hello(instance, worker.hello))
        return stream

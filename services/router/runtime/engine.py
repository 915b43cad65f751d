"""Entry point for callers: passes requests through the core and its executor.

A request costs one future; no task, no timer, no lock. Everything runs on one event loop, and no
method here waits except `infer` and `drain`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from services.kit.clock import Clock
from services.kit.config import WaitingRules
from services.kit.errors import ServiceError, Unavailable
from services.kit.telemetry import logs, tracing
from services.router.core.accounting.account import Account, Ended
from services.router.core.accounting.counters import MAX_SECONDS
from services.router.core.accounting.receipts import Answer
from services.router.core.deferrable.release import ReleasePlan
from services.router.core.dispatch.decisions import Decision
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.forwarding import Outgoing
from services.router.core.model import (
    InstanceId,
    ModelRoutes,
    Request,
    ResponseReceiver,
    RoutingTable,
)
from services.router.core.model_registry import ModelRegistry
from services.router.core.pending_request import PendingRequest, prompt_blocks
from services.router.core.quotas import Quotas
from services.router.core.wire import Head
from services.router.core.worker_port import Hello, Result
from services.router.runtime.deadline_timer import DeadlineTimer
from services.router.runtime.decision_executor import Connect, DecisionExecutor
from services.router.runtime.deferrable_calls import DeferrableCalls
from services.router.runtime.forward_port import ForwardPort
from services.router.runtime.waiting_away import LEAVES, Leaves, WaitingAway, WaitingCall

_log = logs.get("router")

_HELLO_RETRY_S = 1.0
_FREE = nullcontext()


class LengthPort(Protocol):
    """Requests predictions of answers' lengths, and reports the lengths of answers."""

    def request_prediction(self, dispatcher: Dispatcher, pending: PendingRequest) -> None:
        """Request a call of `dispatcher.predict_length` for a waiting request; it may not come."""
        ...

    def end(self, pending: PendingRequest, result: Result | None) -> None:
        """Note that a request has ended: its prediction is not needed any more.

        Args:
            pending: The request, whether or not a prediction was requested for it.
            result: Its answer; None: it has none.
        """
        ...


class Engine:
    """Answers requests by the core and its workers.

    Args:
        registry: The core.
        connect: Opens streams to workers.
        open_account: Opens the account of a model that is new in the table.
        lengths: Predicts lengths of answers; None: they are not predicted.
        clock: Time.
        default_timeout_s: Time limit of requests without a deadline.
        quotas: Request quotas of clients; None: no limit.
        waiting: Rules of requests that can wait; None: the default ones.
        forwards: Has requests answered by peer regions; None: there are none.
        report_soon: Called when the planner should learn the load at once: a worker cannot be
            reached any more, or a request waits for a model without any instance.

    Attributes:
        registry: The models.
        accounts: By model; kept when a model leaves the table.
        hellos: The newest hello of any worker, by model.
        closing: Set once new requests are refused, for good.
    """

    def __init__(  # noqa: PLR0913 - one argument per collaborator, all made in app.py
        self,
        registry: ModelRegistry,
        connect: Connect,
        *,
        open_account: Callable[[ModelRoutes], Account],
        lengths: LengthPort | None = None,
        clock: Clock,
        default_timeout_s: float,
        quotas: Quotas | None = None,
        waiting: WaitingRules | None = None,
        forwards: ForwardPort | None = None,
        report_soon: Callable[[], None] = lambda: None,
    ) -> None:
        self.registry = registry
        self.closing = asyncio.Event()
        self._empty = asyncio.Event()
        self._callers: dict[int, asyncio.Future[Ended]] = {}  # of open requests, by number
        self._executor = DecisionExecutor(
            registry,
            connect,
            open_account=open_account,
            end=self._end,
            call_later=lambda *call: asyncio.get_running_loop().call_later(*call),
            monotonic=clock.monotonic,
            report_soon=report_soon,
        )
        self.accounts: Mapping[str, Account] = self._executor.accounts
        self.hellos: Mapping[str, Hello] = self._executor.hellos
        self._lengths = lengths
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._quotas = quotas
        self._deferrable = DeferrableCalls(waiting or WaitingRules(), quotas, clock)
        self.forwards = forwards
        self._away = WaitingAway(registry, clock, self._infer, self._leave)
        self._report_soon = report_soon
        self._deadlines = DeadlineTimer(self._expire)
        self._epoch_s = clock.now().timestamp() - clock.monotonic()
        self._second = int(clock.now().timestamp()) + 1  # the first that is not reported

    def infer(  # noqa: PLR0913, PLR0917 - what is known of a request
        self,
        head: Head,
        body: bytes,
        remaining_s: float | None,
        receiver: ResponseReceiver | None = None,
        client: Callable[[], str] | None = None,
        region: str = "",
    ) -> Coroutine[Any, Any, Answer]:
        """Return the answer to a request; arguments and errors as of `_infer`.

        `region` is the peer region that forwarded it: a forwarded request is never forwarded.
        """
        if region and head.deferrable:  # it has waited there, and its region was granted this
            head = replace(head, deferrable=False, wait_until_s=None)
        if head.deferrable:
            return self._infer_deferrable(head, body, remaining_s, receiver, client)
        if self.forwards is None:
            return self._infer(head, body, remaining_s, receiver, client)
        if region:
            infer = partial(self._infer, head, body, remaining_s, receiver, client)
            return _infer_for_peer(self.forwards, region, head.model_name, infer)
        if not head.adapter and head.only is None:
            return self._infer_in_regions(self.forwards, head, body, remaining_s, receiver, client)
        return self._infer(head, body, remaining_s, receiver, client)

    async def _infer_deferrable(
        self,
        head: Head,
        body: bytes,
        remaining_s: float | None,
        receiver: ResponseReceiver | None,
        client: Callable[[], str] | None,
    ) -> Answer:
        """Return the answer to a request that can wait."""
        with self._deferrable.counted(head, client):
            if self.forwards is None or head.adapter or head.only is not None:
                return await self._infer(head, body, remaining_s, receiver, client)
            limit_s = self._deferrable.limit_s(head, remaining_s)
            waiting = WaitingCall(head, body, remaining_s, receiver, client)
            return await self._away.infer(self.forwards, waiting, limit_s)

    async def _infer_in_regions(  # noqa: PLR0913, PLR0917 - what is known of a request
        self,
        forwards: ForwardPort,
        head: Head,
        body: bytes,
        remaining_s: float | None,
        receiver: ResponseReceiver | None,
        client: Callable[[], str] | None,
    ) -> Answer:
        """Return a peer region's answer, or else this one's."""
        began_s = self._clock.monotonic()
        dispatcher = self.registry.model(head.model_name, head.model_version)
        default_s = dispatcher.limits.default_deadline_s or self._default_timeout_s
        limit_s = head.limit_s(remaining_s, default_s)
        prefix = (
            partial(prompt_blocks, body) if dispatcher.routes.instance_choice == "prefix" else None
        )
        answer = await forwards.forward(Outgoing(head, body, limit_s, receiver, client, prefix))
        now_s = self._clock.monotonic()
        if answer is not None:  # own demand: the plan keeps room for it to come home
            self._executor.accounts[head.model_name].stats.arrive(int(now_s + self._epoch_s))
            return answer
        if remaining_s is not None:
            remaining_s -= now_s - began_s
        return await self._infer(head, body, remaining_s, receiver, client)

    async def _infer(
        self,
        head: Head,
        body: bytes,
        remaining_s: float | None,
        receiver: ResponseReceiver | None,
        client: Callable[[], str] | None,
    ) -> Answer:
        """Return the answer to a request.

        Args:
            head: Head of the request.
            body: The whole serialized request.
            remaining_s: Until the caller stops waiting and cancels; None: never.
            receiver: Takes responses before the last; None: the caller wants a single one.
            client: Returns the client's identity; called where clients must take turns.

        Raises:
            ServiceError: The request failed; the worker's errors are passed on.
        """
        dispatcher = self.registry.model(head.model_name, head.model_version)
        account = self._executor.accounts[head.model_name]
        now_s = self._clock.monotonic()
        if head.deferrable:
            limit_s = self._deferrable.limit_s(head, remaining_s)
        else:
            default_s = dispatcher.limits.default_deadline_s or self._default_timeout_s
            limit_s = head.limit_s(remaining_s, default_s)
        request = Request(
            next(self._executor.numbers),
            head.model_name,
            body,
            now_s,
            now_s + limit_s,
            tracing.traceparent.get(),
            tracing.tracestate.get(),
            head.priority,
            client,
            receiver is not None,
            head.accuracy_floor,
            head.max_tokens,
            head.id,
            head.text_bytes,
            head.deferrable,
            head.one_of_many,
        )
        pending = PendingRequest(request, receiver=receiver)
        if head.adapter or head.only is not None:
            pending.refusals = _refusals(head, dispatcher)
        if not head.deferrable:
            account.stats.arrive(int(now_s + self._epoch_s))
        result = None
        try:
            future = self._open(dispatcher, pending)
            account.stats.accepted += not head.deferrable
            if limit_s != remaining_s:  # else gRPC watches the deadline, and cancels
                deadline_s = request.deadline_s
                self._deadlines.add(deadline_s, request.number, (dispatcher, pending), now_s)
            ended = await future
            if isinstance(ended, ServiceError):
                raise Leaves if ended is LEAVES else ended
            result = ended.result
        except ServiceError as error:
            account.failure(pending, error.status, self._clock.monotonic())
            raise self.registry.explained(dispatcher, error) from None
        except asyncio.CancelledError:
            self._cancel(dispatcher, pending, future)
            raise
        finally:
            self._callers.pop(request.number, None)
            if self.closing.is_set() and not self._callers:
                self._empty.set()
            if self._lengths is not None:
                self._lengths.end(pending, result)
            self._deadlines.drop(request.deadline_s, request.number)
        return account.answer(pending, ended)

    def roll_seconds(self) -> range:
        """Return the seconds of the wall clock that ended since the last call, the latest only."""
        wall_s = self._clock.now().timestamp()
        self._epoch_s = wall_s - self._clock.monotonic()
        begin, self._second = self._second, int(wall_s)
        return range(max(begin, self._second - MAX_SECONDS), self._second)

    def charged(self, client: Callable[[], str]) -> AbstractContextManager[None]:
        """Count a call against its client's quota while the block runs.

        Args:
            client: Returns the client's identity.

        Raises:
            ResourceExhausted: The client has used its quota; says when to try again.
        """
        if self._quotas is None:
            return _FREE
        return self._quotas.charged(client(), self._clock.monotonic())

    def hello(self, model: str) -> Hello:
        """Return the newest hello of a model's workers.

        Raises:
            Unavailable: None has said hello yet.
        """
        found = self.hellos.get(model)
        if found is None:
            why = self.registry.readiness.why(model)
            raise Unavailable(
                f"no instance of model {model!r} has reported its tensors yet{why}",
                reason="NO_INSTANCE",
                retry_after_s=_HELLO_RETRY_S,
            )
        return found

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests and wait until every accepted one has ended, or `limit_s`."""
        self.closing.set()
        self._executor.execute(self.registry.end_deferrable(shutting_down))
        if not self._callers:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
        except TimeoutError:
            _log.warning(
                "requests were still open at the end of the drain", open=len(self._callers)
            )

    async def send_away(self) -> None:
        """Send requests that wait here away as peer regions take them, for ever."""
        if self.forwards is not None:
            await self._away.keep(self.forwards)

    def swap(self, table: RoutingTable) -> None:
        """Use a new routing table from now on."""
        self._executor.swap(table)

    def release(self, releases: Mapping[str, ReleasePlan]) -> None:
        """Begin requests that can wait as a new plan says, from now on."""
        self._executor.release(releases)

    # ---- inside --------------------------------------------------------------------------------

    def _open(self, dispatcher: Dispatcher, pending: PendingRequest) -> asyncio.Future[Ended]:
        """Accept a request; return the future of its end."""
        if self.closing.is_set():
            raise shutting_down()
        if not dispatcher.routes.instances:
            refusal = self.registry.readiness.refusal(dispatcher.routes.model)
            if refusal is not None:
                raise refusal
        loop = asyncio.get_running_loop()
        future = self._callers[pending.request.number] = loop.create_future()
        self._executor.execute(dispatcher.offer(pending))
        if not dispatcher.routes.instances:
            waiting = dispatcher.queue_depth + len(dispatcher.filler.queue)
            if waiting == 1:
                self._report_soon()
        if self._lengths is not None and dispatcher.uses_length(pending):
            self._lengths.request_prediction(dispatcher, pending)
        if dispatcher.hedges and not pending.request.deferrable:
            loop.call_later(dispatcher.second_after_s or 0.0, self._hedge, dispatcher, pending)
        return future

    def _end(self, number: int, ended: Ended) -> bool:
        """Resolve a caller's request; return whether the caller was still waiting."""
        future = self._callers.get(number)
        if future is None or future.done():
            return False
        future.set_result(ended)
        return True

    def _cancel(
        self, dispatcher: Dispatcher, pending: PendingRequest, future: asyncio.Future[Ended]
    ) -> None:
        """End a request whose caller has gone, and count it."""
        model, now_s = pending.request.model, self._clock.monotonic()
        self._decide(dispatcher, pending, Dispatcher.cancel)
        if not future.cancelled():  # the answer came together with the end
            self._executor.count_unclaimed(model, future.result())
        late = now_s >= pending.request.deadline_s
        status = "DEADLINE_EXCEEDED" if late else "CANCELLED"
        self._executor.accounts[model].failure(pending, status, now_s)

    def _leave(self, dispatcher: Dispatcher, pending: PendingRequest) -> None:
        """Take a request that waits out of its queue, for a peer region."""
        self._executor.execute(dispatcher.cancel(pending))
        self._end(pending.request.number, LEAVES)

    def _hedge(self, dispatcher: Dispatcher, pending: PendingRequest) -> None:
        """Hedge a request with a second worker, or try again; nothing happens if it has ended."""
        self._decide(dispatcher, pending, lambda at, one: at.hedge(one, self._clock.monotonic()))
        again_s = dispatcher.hedge_again_s(pending)
        if again_s is not None:
            asyncio.get_running_loop().call_later(again_s, self._hedge, dispatcher, pending)

    def _expire(self, late: tuple[Dispatcher, PendingRequest]) -> None:
        self._decide(*late, Dispatcher.expire)

    def _decide(
        self,
        dispatcher: Dispatcher,
        pending: PendingRequest,
        decide: Callable[[Dispatcher, PendingRequest], list[Decision]],
    ) -> None:
        """Decide on a client's request at the stage where it is now."""
        current = pending.stand_in
        if current is None:
            self._executor.execute(decide(dispatcher, pending))
            return
        self._executor.execute(decide(self.registry.holding(current) or dispatcher, current))
        self._executor.execute(self.registry.settle(pending.request.model, self._clock.monotonic()))


def _refusals(head: Head, dispatcher: Dispatcher) -> Mapping[InstanceId, ServiceError]:
    """Return why instances may not answer a request that leaves not all of them."""
    if head.only is not None:
        return dispatcher.outside(head.only)
    return dispatcher.without_adapter(head.adapter)


def shutting_down() -> Unavailable:
    """Return the error of a router that takes no more requests."""
    why = "this router is shutting down"
    return Unavailable(why, reason="DRAINING", retry_after_s=1.0)


async def _infer_for_peer(
    forwards: ForwardPort, region: str, model: str, infer: Callable[[], Awaitable[Answer]]
) -> Answer:
    """Return the answer to a peer region's request."""
    forwards.received(region, model)
    answer = await infer()
    forwards.answered(region, model, answer)
    return answer

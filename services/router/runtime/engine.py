"""The router without its servers: the callers' side; that of the workers is `carrier`.

A request costs one future; no task, no timer, no lock. Everything runs on one event loop, and no
method here waits except `ask` and `drain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.kit.clock import Clock
from services.kit.errors import ServiceError, Unavailable
from services.kit.telemetry import logs, tracing
from services.router.core.accounting.account import Account, Answer
from services.router.core.dispatch.decisions import Decision
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.length_port import LengthPort
from services.router.core.model import ModelRoutes, Request, ResponseReceiver, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.outcome import Outcome
from services.router.core.wire import Head
from services.router.core.worker_port import Connect
from services.router.runtime.deadline_timer import DeadlineTimer
from services.router.runtime.decision_executor import DecisionExecutor

_log = logs.get("router")


class Engine:
    """Has requests answered.

    Attributes:
        registry: The core.
        accounts: By model; kept when a model leaves the table.
        hellos: The newest hello of any worker, by model.
        lengths: Foretells lengths of answers; None: nobody does.
        closing: Set once new requests are refused, for good.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        connect: Connect,
        *,
        open_account: Callable[[ModelRoutes], Account],
        clock: Clock,
        default_timeout_s: float,
    ) -> None:
        self.registry = registry
        self.lengths: LengthPort | None = None
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._executor = DecisionExecutor(
            registry,
            connect,
            open_account=open_account,
            clock=clock,
            end=self._end,
        )
        self.accounts = self._executor.accounts
        self.hellos = self._executor.hellos
        self._callers: dict[int, asyncio.Future[Outcome | ServiceError]] = {}
        self._deadlines = DeadlineTimer(self._expire)
        self.closing = asyncio.Event()
        self._empty = asyncio.Event()

    # ---- callers -------------------------------------------------------------------------------

    async def ask(
        self,
        head: Head,
        body: bytes,
        remaining_s: float | None,
        parts: ResponseReceiver | None = None,
        client: Callable[[], str] | None = None,
    ) -> Answer:
        """Have a request answered.

        Args:
            head: What was read of it.
            body: All of it.
            remaining_s: Until the caller stops waiting and cancels; None: never.
            parts: Takes the answer's parts before the last; None: the caller wants one answer.
            client: Returns who asks; called where clients must take turns.

        Raises:
            ServiceError: Why there is no answer; the worker's errors are passed on.
        """
        dispatcher = self.registry.model(head.model_name, head.model_version)
        account = self.accounts[head.model_name]
        request, watched = self._request(dispatcher, head, body, remaining_s)
        request.parts, request.whose = parts, client
        account.arrive()
        tick = 0
        try:
            future = self._open(dispatcher, request)
            account.stats.accept()
            if watched:
                tick = self._deadlines.add(
                    request.deadline_s, request.number, (dispatcher, request), request.arrived_s
                )
            ended = await future
            if isinstance(ended, ServiceError):
                raise ended
        except ServiceError as error:
            account.failure(request, error.status, self._clock.monotonic())
            raise
        except asyncio.CancelledError:
            self._elsewhere(dispatcher, request, Dispatcher.cancel)
            if not future.cancelled():  # the answer came together with the end
                self._unclaimed(account, future.result())
            now_s = self._clock.monotonic()
            late = now_s >= request.deadline_s
            account.failure(request, "DEADLINE_EXCEEDED" if late else "CANCELLED", now_s)
            raise
        finally:
            self._close(request.number, tick)
        if self.lengths is not None and ended.result.cost is not None:
            self.lengths.learn(request, ended.result.cost.output_tokens)
        return account.answer(request, ended.instance, ended.result, self._clock.monotonic())

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests and wait until every accepted one has ended, or `limit_s`."""
        self.closing.set()
        if not self._callers:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
        except TimeoutError:
            _log.warning("requests were still open at the end of the drain", open=self.open)

    @property
    def open(self) -> int:
        """Requests whose callers wait."""
        return len(self._callers)

    # ---- the planner ---------------------------------------------------------------------------

    def swap(self, table: RoutingTable) -> None:
        """Use a new routing table from now on."""
        self._executor.swap(table)

    # ---- inside --------------------------------------------------------------------------------

    def _request(
        self, dispatcher: Dispatcher, head: Head, body: bytes, remaining_s: float | None
    ) -> tuple[Request, bool]:
        """Return the request, and whether its deadline is ours to watch, not gRPC's."""
        now_s = self._clock.monotonic()
        default_s = dispatcher.limits.default_deadline_s or self._default_timeout_s
        limit_s = head.limit_s(remaining_s, default_s)
        request = Request(
            number=next(self._executor.numbers),
            model=head.model_name,
            body=body,
            arrived_s=now_s,
            deadline_s=now_s + limit_s,
            traceparent=tracing.traceparent.get(),
            tracestate=tracing.tracestate.get(),
            priority=head.priority,
        )
        return request, limit_s != remaining_s

    def _open(
        self, dispatcher: Dispatcher, request: Request
    ) -> asyncio.Future[Outcome | ServiceError]:
        """Accept a request; return where its outcome will be."""
        if self.closing.is_set():
            raise shutting_down()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome | ServiceError] = loop.create_future()
        self._callers[request.number] = future
        self._executor.execute(dispatcher.offer(request))
        if self.lengths is not None and dispatcher.predicts_lengths and request.holder is None:
            self.lengths.ask(dispatcher, request)
        hedge_after_s = dispatcher.limits.hedge_after_s
        if hedge_after_s is not None:
            loop.call_later(hedge_after_s, self._hedge, dispatcher, request)
        return future

    def _close(self, number: int, tick: int) -> None:
        """Forget a request's caller, who has been told or has gone."""
        self._callers.pop(number, None)
        if self.lengths is not None:
            self.lengths.ended(number)
        if tick:
            self._deadlines.drop(tick, number)
        if self.closing.is_set() and not self._callers:
            self._empty.set()

    def _hedge(self, dispatcher: Dispatcher, request: Request) -> None:
        """Let a second worker try; nothing happens where the request has ended meanwhile."""
        self._elsewhere(dispatcher, request, Dispatcher.hedge)

    def _expire(self, late: tuple[Dispatcher, Request]) -> None:
        self._elsewhere(*late, Dispatcher.expire)

    def _elsewhere(
        self,
        dispatcher: Dispatcher,
        request: Request,
        what: Callable[[Dispatcher, Request], list[Decision]],
    ) -> None:
        """Have something done with a client's request at whichever stage it is by now."""
        if request.pipeline is None:
            self._executor.execute(what(dispatcher, request))
            return
        now = request.pipeline.now
        self._executor.execute(what(self.registry.at(now) or dispatcher, now))
        self._executor.execute(self.registry.settle(request.model))

    def _end(self, request: Request, ended: Outcome | ServiceError) -> None:
        pipeline = request.pipeline
        caller = self._callers.get(pipeline.number if pipeline else request.number)
        if caller is not None and not caller.done():
            caller.set_result(ended)
        else:
            self._unclaimed(self.accounts[request.model], ended)

    def _unclaimed(self, account: Account, ended: Outcome | ServiceError) -> None:
        """Count what an answer cost whose caller went while it came."""
        if isinstance(ended, Outcome):
            account.spent(ended.instance, ended.result)


def shutting_down() -> Unavailable:
    """Return why a router that ends takes no more."""
    why = "this router is shutting down"
    return Unavailable(why, reason="DRAINING", retry_after_s=1.0)

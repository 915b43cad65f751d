"""Carries the decisions of the core out: futures for callers, streams to workers.

A request costs one future and, where its caller brought no deadline, one timer; no task, no lock.
Everything runs on one event loop, and no method here waits except `ask` and `drain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from services.kit import logs, tracing
from services.kit.clock import Clock
from services.kit.errors import ServiceError, Unavailable, from_status
from services.router.account import Account, Answer
from services.router.decisions import Decision, Dial, Fail, Release, Reply, Send, Withdraw
from services.router.dispatcher import Dispatcher
from services.router.domain import Instance, InstanceId, Request, RoutingTable
from services.router.link import Connect, Hello, Link, Result
from services.router.receipts import Intensity
from services.router.switchboard import Switchboard
from services.router.wire import Head

_log = logs.get("router")

_DRAIN_RETRY_S = 1.0


class _Line(NamedTuple):
    """A link and the dispatcher whose requests it carries."""

    link: Link
    dispatcher: Dispatcher


class _Outcome(NamedTuple):
    """A worker's result for a request."""

    instance: Instance
    result: Result


class Engine:
    """The router without its servers.

    Attributes:
        board: The core.
        accounts: By model; kept when a model leaves the table.
        hellos: The newest hello of any worker, by model.
    """

    def __init__(
        self,
        board: Switchboard,
        connect: Connect,
        *,
        intensity: Intensity,
        clock: Clock,
        default_timeout_s: float,
    ) -> None:
        self.board = board
        self.accounts: dict[str, Account] = {}
        self.hellos: dict[str, Hello] = {}
        self._connect = connect
        self._intensity = intensity
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._numbers = count(1)
        self._lines: dict[InstanceId, _Line] = {}
        self._callers: dict[int, asyncio.Future[_Outcome | ServiceError]] = {}
        self._closing = False
        self._empty = asyncio.Event()
        self._open_accounts()

    # ---- callers -------------------------------------------------------------------------------

    async def ask(self, head: Head, body: bytes, remaining_s: float | None) -> Answer:
        """Have a request answered.

        Args:
            head: What was read of it.
            body: All of it.
            remaining_s: Until the caller stops waiting and cancels; None: never.

        Raises:
            ServiceError: Why there is no answer; the worker's errors are passed on.
        """
        dispatcher = self.board.model(head.model_name, head.model_version)
        request, needs_timer = self._request(head, body, remaining_s)
        account = self.accounts[request.model]
        account.arrive()
        try:
            outcome = await self._outcome(dispatcher, request, needs_timer=needs_timer)
            if isinstance(outcome, ServiceError):
                raise outcome
            if outcome.result.status:
                raise from_status(outcome.result.status, outcome.result.message)
        except ServiceError as error:
            account.failure(request, error.status, self._clock.monotonic())
            raise
        except asyncio.CancelledError:
            now_s = self._clock.monotonic()
            late = now_s >= request.deadline_s
            account.failure(request, "DEADLINE_EXCEEDED" if late else "CANCELLED", now_s)
            raise
        return account.answer(request, outcome.instance, outcome.result, self._clock.monotonic())

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests and wait until every accepted one has ended, or `limit_s`."""
        self._closing = True
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
        self._carry_out(self.board.swap(table))
        self._open_accounts()

    # ---- workers -------------------------------------------------------------------------------

    def hello(self, instance: Instance, hello: Hello) -> None:
        """The worker takes requests."""
        self.hellos[instance.model] = hello
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.up(instance.id, hello.credits))

    def results(self, instance: Instance, results: Iterable[Result]) -> None:
        """The worker is done with requests."""
        for result in results:
            line = self._lines.get(instance.id)
            if line is None:  # released by the result before
                return
            refused = result.status == Unavailable.status
            decisions = line.dispatcher.result(instance.id, result.number, refused=refused)
            self._carry_out(decisions, result)

    def draining(self, instance: Instance) -> None:
        """The worker takes no more requests."""
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.draining(instance.id))

    def broken(self, instance: Instance) -> None:
        """The stream ended, or could not be opened."""
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.down(instance.id))

    # ---- inside --------------------------------------------------------------------------------

    def _request(self, head: Head, body: bytes, remaining_s: float | None) -> tuple[Request, bool]:
        """Return the request, and whether its deadline is ours to watch.

        gRPC itself cancels a call whose deadline passes.
        """
        now_s = self._clock.monotonic()
        limits = [limit for limit in (remaining_s, head.timeout_s) if limit is not None]
        limit_s = min(limits, default=self._default_timeout_s)
        request = Request(
            number=next(self._numbers),
            model=head.model_name,
            body=body,
            arrived_s=now_s,
            deadline_s=now_s + limit_s,
            traceparent=tracing.traceparent.get(),
        )
        return request, limit_s != remaining_s

    async def _outcome(
        self, dispatcher: Dispatcher, request: Request, *, needs_timer: bool
    ) -> _Outcome | ServiceError:
        if self._closing:
            raise Unavailable(
                "this router is shutting down", reason="DRAINING", retry_after_s=_DRAIN_RETRY_S
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome | ServiceError] = loop.create_future()
        self._callers[request.number] = future
        timer = None
        try:
            self._carry_out(dispatcher.offer(request))
            self.accounts[request.model].tally.accept()
            if needs_timer:
                timer = loop.call_later(
                    request.deadline_s - request.arrived_s, self._expire, dispatcher, request
                )
            return await future
        except asyncio.CancelledError:
            self._carry_out(dispatcher.abandon(request))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            del self._callers[request.number]
            if self._closing and not self._callers:
                self._empty.set()

    def _expire(self, dispatcher: Dispatcher, request: Request) -> None:
        self._carry_out(dispatcher.expire(request))

    def _carry_out(self, decisions: Iterable[Decision], result: Result | None = None) -> None:
        for decision in decisions:
            match decision:
                case Send(instance, request):
                    request.sent_s = self._clock.monotonic()
                    if request.attempts > 1:
                        self.accounts[request.model].tally.retry()
                    self._lines[instance.id].link.send(request)
                case Reply(instance, request) if result is not None:
                    self._end(request, _Outcome(instance, result))
                case Fail(request, error):
                    self._end(request, error)
                case Withdraw(instance, request):
                    self._lines[instance.id].link.withdraw(request.number)
                case Dial(instance):
                    dispatcher = self.board.model(instance.model)
                    link = self._connect(instance, self)
                    self._lines[instance.id] = _Line(link, dispatcher)
                case Release(instance):
                    self._lines.pop(instance.id).link.close()

    def _end(self, request: Request, outcome: _Outcome | ServiceError) -> None:
        caller = self._callers.get(request.number)
        if caller is not None and not caller.done():
            caller.set_result(outcome)

    def _open_accounts(self) -> None:
        for dispatcher in self.board:
            routes = dispatcher.routes
            account = self.accounts.get(routes.model)
            if account is None:
                account = Account(routes.model, routes.slo_latency_s, self._intensity)
                self.accounts[routes.model] = account
            account.tally.slo_latency_s = routes.slo_latency_s

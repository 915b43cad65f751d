"""Carries the decisions of the core out: futures for callers, streams to workers.

A request costs one future; no task, no timer, no lock. Everything runs on one event loop, and no
method here waits except `ask` and `drain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from services.kit import logs, tracing
from services.kit.clock import Clock
from services.kit.errors import ServiceError, Unavailable
from services.router.account import Account, Answer
from services.router.decisions import (
    Decision,
    Dial,
    Fail,
    Look,
    Release,
    Reply,
    Restart,
    Send,
    Withdraw,
)
from services.router.dispatcher import Dispatcher
from services.router.domain import Instance, InstanceId, ModelRoutes, Parts, Request, RoutingTable
from services.router.lengths import Lengths
from services.router.link import Connect, Hello, Link, Result
from services.router.outcome import Outcome, outcome
from services.router.parts import OnlyOne
from services.router.relay import Relay
from services.router.switchboard import Switchboard
from services.router.ticks import Ticks
from services.router.wire import Head

_log = logs.get("router")


class _Line(NamedTuple):
    """A link and the dispatcher whose requests it carries."""

    link: Link
    dispatcher: Dispatcher


class Engine:
    """The router without its servers.

    Attributes:
        board: The core.
        accounts: By model; kept when a model leaves the table.
        hellos: The newest hello of any worker, by model.
        lengths: Foretells lengths of answers; None: nobody does.
        closing: Set once new requests are refused, for good.
    """

    def __init__(
        self,
        board: Switchboard,
        connect: Connect,
        *,
        open_account: Callable[[ModelRoutes], Account],
        clock: Clock,
        default_timeout_s: float,
    ) -> None:
        self.board = board
        self.accounts: dict[str, Account] = {}
        self.hellos: dict[str, Hello] = {}
        self.lengths: Lengths | None = None
        self._connect = connect
        self._open_account = open_account
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._numbers = count(1)
        self._relay = Relay(board, self._numbers)
        self._lines: dict[InstanceId, _Line] = {}
        self._callers: dict[int, asyncio.Future[Outcome | ServiceError]] = {}
        self._deadlines = Ticks(self._expire)
        self.closing = asyncio.Event()
        self._empty = asyncio.Event()
        self._open_accounts()

    # ---- callers -------------------------------------------------------------------------------

    async def ask(
        self,
        head: Head,
        body: bytes,
        remaining_s: float | None,
        parts: Parts | None = None,
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
        dispatcher = self.board.model(head.model_name, head.model_version)
        account = self.accounts[head.model_name]
        request, watched = self._request(dispatcher, head, body, remaining_s)
        request.parts, request.whose = parts, client
        account.arrive()
        tick = 0
        try:
            future = self._open(dispatcher, request)
            account.tally.accept()
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
            self._elsewhere(dispatcher, request, Dispatcher.abandon)
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
        self._carry_out(self.board.swap(table))
        self._open_accounts()

    # ---- workers -------------------------------------------------------------------------------

    def hello(self, instance: Instance, hello: Hello) -> None:
        """The worker takes requests."""
        whole = hello if instance.stages == 1 else self._relay.hello(instance, hello)
        if whole is not None:
            self.hellos[instance.model] = whole
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.up(instance.id, hello.credits))
            self._settle(instance)

    def credits(self, instance: Instance, credits_: int) -> None:
        """The worker may be given so many requests from now on."""
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.credits(instance.id, credits_))
            self._settle(instance)

    def results(self, instance: Instance, results: Iterable[Result]) -> None:
        """The worker is done with requests."""
        now_s = self._clock.monotonic()
        for result in results:
            line = self._lines.get(instance.id)
            if line is None:  # released by the result before
                break
            if result.more:
                self._part(line.dispatcher, instance, result)
                continue
            refused = result.status == Unavailable.status
            decisions = line.dispatcher.result(
                instance.id,
                result.number,
                refused=refused,
                now_s=now_s,
                energy_j=result.cost.energy_j if result.cost else 0.0,
            )
            if result.cost and not (decisions and isinstance(decisions[0], Reply)):
                self.accounts[instance.model].spent(instance, result)  # its caller has gone
            self._carry_out(decisions, result)
        self._settle(instance)

    def draining(self, instance: Instance) -> None:
        """The worker takes no more requests."""
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.draining(instance.id))
            self._settle(instance)

    def broken(self, instance: Instance) -> None:
        """The stream ended, or could not be opened."""
        line = self._lines.get(instance.id)
        if line:
            self._carry_out(line.dispatcher.down(instance.id))
            self._settle(instance)

    # ---- inside --------------------------------------------------------------------------------

    def _request(
        self, dispatcher: Dispatcher, head: Head, body: bytes, remaining_s: float | None
    ) -> tuple[Request, bool]:
        """Return the request, and whether its deadline is ours to watch, not gRPC's."""
        now_s = self._clock.monotonic()
        default_s = dispatcher.limits.default_deadline_s or self._default_timeout_s
        limit_s = head.limit_s(remaining_s, default_s)
        request = Request(
            number=next(self._numbers),
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
        self._carry_out(dispatcher.offer(request))
        if self.lengths is not None and dispatcher.foretells and request.holder is None:
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

    def _part(self, dispatcher: Dispatcher, instance: Instance, result: Result) -> None:
        """Hand a part of an answer on; its request keeps its credit until the last."""
        request = dispatcher.held(instance.id, result.number)
        if request is None:
            return
        request.begun = True
        self._heard(request, result)
        request.parts = request.parts or OnlyOne(request.model)
        try:
            request.parts.add(instance, result.response)
        except ServiceError as error:
            self._carry_out([*dispatcher.abandon(request), Fail(request, error)])

    def _heard(self, request: Request, result: Result) -> None:
        responses = self.accounts[request.model].tally.responses
        responses.heard(request, result, self._clock.monotonic())

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
        if request.journey is None:
            self._carry_out(what(dispatcher, request))
            return
        now = request.journey.now
        self._carry_out(what(self.board.at(now) or dispatcher, now))
        self._carry_out(self.board.settle(request.model))

    def _settle(self, instance: Instance) -> None:
        """Have pipelines follow what happened to an instance of one of their stages."""
        if instance.stages > 1:
            self._carry_out(self.board.settle(instance.model))

    def _carry_out(self, decisions: Iterable[Decision], result: Result | None = None) -> None:
        for decision in decisions:
            match decision:
                case Send(instance, request):
                    self._send(instance, request)
                case Reply(instance, request) if result is not None:
                    self._reply(instance, request, result)
                case Restart(request):
                    self._carry_out(self._relay.again(request, self._clock.monotonic()))
                case Fail(request, error):
                    self._end(request, error)
                case Withdraw(instance, request):
                    self._lines[instance.id].link.withdraw(request.number)
                case Dial(instance):
                    dispatcher = self.board.of(instance)
                    link = self._connect(instance, self)
                    self._lines[instance.id] = _Line(link, dispatcher)
                case Release(instance):
                    self._lines.pop(instance.id).link.close()
                case Look(model, at_s):
                    self._look_at(model, at_s)

    def _reply(self, instance: Instance, request: Request, result: Result) -> None:
        """Give a result to the request's caller, or to the next stage."""
        if instance.passes_on and not result.status:
            now_s = self._clock.monotonic()
            self._carry_out(self._relay.onward(instance, request, result, now_s))
            return
        account = self.accounts[request.model]
        if self.hellos[request.model].decoupled:
            self._heard(request, result)
        self._end(request, outcome(account, request, instance, result))

    def _send(self, instance: Instance, request: Request) -> None:
        request.sent_s = self._clock.monotonic()
        if request.attempts > 1:
            self.accounts[request.model].tally.retry()
        self._lines[instance.id].link.send(request)

    def _look_at(self, model: str, at_s: float) -> None:
        wait_s = max(at_s - self._clock.monotonic(), 0.0)
        asyncio.get_running_loop().call_later(wait_s, self._look, model)

    def _look(self, model: str) -> None:
        """Let a model's dispatcher look at what waits; nothing happens where the model is gone."""
        dispatcher = self.board.find(model)
        if dispatcher is not None:
            self._carry_out(dispatcher.look(self._clock.monotonic()))

    def _end(self, request: Request, ended: Outcome | ServiceError) -> None:
        journey = request.journey
        caller = self._callers.get(journey.number if journey else request.number)
        if caller is not None and not caller.done():
            caller.set_result(ended)
        else:
            self._unclaimed(self.accounts[request.model], ended)

    def _unclaimed(self, account: Account, ended: Outcome | ServiceError) -> None:
        """Count what an answer cost whose caller went while it came."""
        if isinstance(ended, Outcome):
            account.spent(ended.instance, ended.result)

    def _open_accounts(self) -> None:
        for dispatcher in self.board:
            routes = dispatcher.routes
            account = self.accounts.get(routes.model) or self._open_account(routes)
            account.use(routes)
            self.accounts[routes.model] = account


def shutting_down() -> Unavailable:
    """Return why a router that ends takes no more."""
    why = "this router is shutting down"
    return Unavailable(why, reason="DRAINING", retry_after_s=1.0)

"""Carries the decisions of the core out, and tells it what happens: the workers' side.

Everything runs on one event loop, and no method here waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from services.kit.clock import Clock
from services.kit.errors import ServiceError, Unavailable
from services.router.core.accounting.account import Account
from services.router.core.dispatch.decisions import (
    Decision,
    Dial,
    Fail,
    Reconsider,
    Release,
    Reply,
    Restart,
    Send,
    Withdraw,
)
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Instance, InstanceId, ModelRoutes, Request, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.outcome import Outcome, outcome
from services.router.core.single_response import SingleResponse
from services.router.core.worker_port import Connect, Hello, Result, WorkerPort
from services.router.runtime.pipeline_relay import PipelineRelay

End = Callable[[Request, Outcome | ServiceError], None]


class _OpenStream(NamedTuple):
    """A link and the dispatcher whose requests it carries."""

    link: WorkerPort
    dispatcher: Dispatcher


class DecisionExecutor:
    """Streams to workers, and what comes of them.

    Args:
        registry: The core.
        connect: Opens a stream to a worker.
        open_account: Opens the account of a model that is new in the table.
        clock: Time.
        end: Told how each request ended, once.

    Attributes:
        accounts: By model; kept when a model leaves the table.
        hellos: The newest hello of any worker, by model.
        numbers: For requests, of clients and of later stages.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        connect: Connect,
        *,
        open_account: Callable[[ModelRoutes], Account],
        clock: Clock,
        end: End,
    ) -> None:
        self.accounts: dict[str, Account] = {}
        self.hellos: dict[str, Hello] = {}
        self.numbers = count(1)
        self._registry = registry
        self._connect = connect
        self._open_account = open_account
        self._clock = clock
        self._end = end
        self._relay = PipelineRelay(registry, self.numbers)
        self._streams: dict[InstanceId, _OpenStream] = {}
        self._open_accounts()

    def swap(self, table: RoutingTable) -> None:
        """Use a new routing table from now on."""
        self.execute(self._registry.swap(table))
        self._open_accounts()

    # ---- what workers tell ---------------------------------------------------------------------

    def hello(self, instance: Instance, hello: Hello) -> None:
        """The worker takes requests."""
        whole = hello if instance.stages == 1 else self._relay.hello(instance, hello)
        if whole is not None:
            self.hellos[instance.model] = whole
        line = self._streams.get(instance.id)
        if line:
            self.execute(line.dispatcher.up(instance.id, hello.credits))
            self._settle(instance)

    def credits(self, instance: Instance, credits_: int) -> None:
        """The worker may be given so many requests from now on."""
        line = self._streams.get(instance.id)
        if line:
            self.execute(line.dispatcher.credits(instance.id, credits_))
            self._settle(instance)

    def results(self, instance: Instance, results: Iterable[Result]) -> None:
        """The worker is done with requests."""
        now_s = self._clock.monotonic()
        for result in results:
            line = self._streams.get(instance.id)
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
            self.execute(decisions, result)
        self._settle(instance)

    def draining(self, instance: Instance) -> None:
        """The worker takes no more requests."""
        line = self._streams.get(instance.id)
        if line:
            self.execute(line.dispatcher.draining(instance.id))
            self._settle(instance)

    def broken(self, instance: Instance) -> None:
        """The stream ended, or could not be opened."""
        line = self._streams.get(instance.id)
        if line:
            self.execute(line.dispatcher.down(instance.id))
            self._settle(instance)

    # ---- what is to be done --------------------------------------------------------------------

    def execute(self, decisions: Iterable[Decision], result: Result | None = None) -> None:
        """Do what the core decided; `result` is what it decided upon, if a worker's answer was."""
        for decision in decisions:
            match decision:
                case Send(instance, request):
                    self._send(instance, request)
                case Reply(instance, request) if result is not None:
                    self._reply(instance, request, result)
                case Restart(request):
                    self.execute(self._relay.again(request, self._clock.monotonic()))
                case Fail(request, error):
                    self._end(request, error)
                case Withdraw(instance, request):
                    self._streams[instance.id].link.withdraw(request.number)
                case Dial(instance):
                    dispatcher = self._registry.of(instance)
                    link = self._connect(instance, self)
                    self._streams[instance.id] = _OpenStream(link, dispatcher)
                case Release(instance):
                    self._streams.pop(instance.id).link.close()
                case Reconsider(model, at_s):
                    self._reconsider_at(model, at_s)

    def _settle(self, instance: Instance) -> None:
        """Have pipelines follow what happened to an instance of one of their stages."""
        if instance.stages > 1:
            self.execute(self._registry.settle(instance.model))

    def _reply(self, instance: Instance, request: Request, result: Result) -> None:
        """Give a result to the request's caller, or to the next stage."""
        if instance.passes_on and not result.status:
            now_s = self._clock.monotonic()
            self.execute(self._relay.onward(instance, request, result, now_s))
            return
        account = self.accounts[request.model]
        if self.hellos[request.model].decoupled:
            self._heard(request, result)
        self._end(request, outcome(account, request, instance, result))

    def _send(self, instance: Instance, request: Request) -> None:
        request.sent_s = self._clock.monotonic()
        if request.attempts > 1:
            self.accounts[request.model].stats.retry()
        self._streams[instance.id].link.send(request)

    def _part(self, dispatcher: Dispatcher, instance: Instance, result: Result) -> None:
        """Hand a part of an answer on; its request keeps its credit until the last."""
        request = dispatcher.held(instance.id, result.number)
        if request is None:
            return
        request.begun = True
        self._heard(request, result)
        request.parts = request.parts or SingleResponse(request.model)
        try:
            request.parts.add(instance, result.response)
        except ServiceError as error:
            self.execute([*dispatcher.cancel(request), Fail(request, error)])

    def _heard(self, request: Request, result: Result) -> None:
        responses = self.accounts[request.model].stats.responses
        responses.heard(request, result, self._clock.monotonic())

    def _reconsider_at(self, model: str, at_s: float) -> None:
        wait_s = max(at_s - self._clock.monotonic(), 0.0)
        asyncio.get_running_loop().call_later(wait_s, self._reconsider, model)

    def _reconsider(self, model: str) -> None:
        """Let a model's dispatcher look at what waits; nothing happens where the model is gone."""
        dispatcher = self._registry.find(model)
        if dispatcher is not None:
            self.execute(dispatcher.reconsider(self._clock.monotonic()))

    def _open_accounts(self) -> None:
        for dispatcher in self._registry:
            routes = dispatcher.routes
            account = self.accounts.get(routes.model) or self._open_account(routes)
            account.use(routes)
            self.accounts[routes.model] = account

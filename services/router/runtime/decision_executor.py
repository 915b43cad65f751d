"""Executes the core's decisions, and reports the workers' events to it.

No method here waits: the router runs them on its event loop, the simulator in virtual time.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from inference import grpc_service_pb2 as pb
from services.kit.errors import ResourceExhausted, ServiceError, Unavailable
from services.router.core.accounting.account import Account, Ended, Outcome
from services.router.core.deferrable.release import ReleasePlan
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
from services.router.core.model import Instance, InstanceId, ModelRoutes, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.pending_request import PendingRequest
from services.router.core.worker_port import Hello, Result, WorkerPort

_REFUSALS = (Unavailable.status, ResourceExhausted.status)
"""Statuses with which a worker says that it did not try: another may."""


class _OpenStream(NamedTuple):
    """A stream to a worker, and the dispatcher whose requests it carries."""

    port: WorkerPort
    dispatcher: Dispatcher


CallLater = Callable[[float, Callable[[str], None], str], object]
"""Calls a function with an argument after a delay, s."""

Connect = Callable[[Instance, "DecisionExecutor"], WorkerPort]
"""Begins to open a stream to a worker, whose events go to the executor."""


class StageMetadata:
    """The newest metadata of each stage, by model, variant and stage."""

    def __init__(self) -> None:
        self._stages: dict[tuple[str, str, int], pb.ModelMetadataResponse] = {}

    def add(self, instance: Instance, hello: Hello) -> Hello | None:
        """Take a stage's hello; return the whole model's once every stage is known."""
        model, variant = instance.model, instance.variant
        metadata = pb.ModelMetadataResponse.FromString(hello.metadata)
        self._stages[model, variant, instance.stage] = metadata
        stages = [self._stages.get((model, variant, at)) for at in range(instance.stages)]
        known = [each for each in stages if each is not None]
        if len(known) < instance.stages:
            return None
        return Hello(hello.credits, _whole(known).SerializeToString())

    def inputs_after(self, instance: Instance) -> Sequence[str]:
        """Return the input names of the stage after an instance's; empty: not known."""
        found = self._stages.get((instance.model, instance.variant, instance.stage + 1))
        return [tensor.name for tensor in found.inputs] if found else ()


def _whole(stages: Sequence[pb.ModelMetadataResponse]) -> pb.ModelMetadataResponse:
    """Return a pipeline's inputs from clients and outputs to clients."""
    found = pb.ModelMetadataResponse()
    found.CopyFrom(stages[0])
    given = {tensor.name for stage in stages for tensor in stage.outputs}
    there = {tensor.name for tensor in found.inputs}
    for stage in stages[1:]:
        for tensor in stage.inputs:
            if tensor.name not in given | there:
                there.add(tensor.name)
                found.inputs.add().CopyFrom(tensor)
    del found.outputs[:]
    found.outputs.extend(stages[-1].outputs)
    return found


@dataclass(eq=False)
class DecisionExecutor:
    """Streams to the workers, and the accounts of their work.

    Attributes:
        registry: The core.
        connect: Opens a stream to a worker.
        open_account: Opens the account of a model that is new in the table.
        end: Gives the caller of a request, by its number, the end of it, once; returns whether the
            caller still waited.
        call_later: Calls a function later.
        monotonic: Returns the time, s, which never goes back.
        accounts: By model; kept when a model leaves the table.
        hellos: The newest hello of any worker, by model.
        numbers: Numbers of requests, of clients and of later stages.
        report_soon: Called when a worker cannot be reached any more.
    """

    registry: ModelRegistry
    connect: Connect
    open_account: Callable[[ModelRoutes], Account]
    end: Callable[[int, Ended], bool]
    call_later: CallLater
    monotonic: Callable[[], float]
    accounts: dict[str, Account] = field(default_factory=dict)
    hellos: dict[str, Hello] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    report_soon: Callable[[], None] = lambda: None
    _stage_metadata: StageMetadata = field(default_factory=StageMetadata)
    _streams: dict[InstanceId, _OpenStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open_accounts()

    def swap(self, table: RoutingTable) -> None:
        """Use a new routing table from now on."""
        self.execute(self.registry.swap(table, self.monotonic()))
        self._open_accounts()

    def release(self, releases: Mapping[str, ReleasePlan]) -> None:
        """Begin deferrable requests as a new plan says."""
        self.execute(self.registry.release(releases, self.monotonic()))

    def count_unclaimed(self, model: str, ended: Ended) -> None:
        """Count the cost of an answer whose caller had gone when it came."""
        if isinstance(ended, Outcome):
            self.accounts[model].count_unclaimed(ended.instance, ended.result.cost)

    # ---- events of workers ---------------------------------------------------------------------

    def hello(self, instance: Instance, hello: Hello) -> None:
        """Mark an instance as up: its worker takes requests."""
        whole = hello if instance.stages == 1 else self._stage_metadata.add(instance, hello)
        if whole is not None:
            self.hellos[instance.model] = whole
        self._report(instance, Dispatcher.up, hello)

    def credits(self, instance: Instance, credits_: int) -> None:
        """Change the number of requests that the worker may hold, >= 1."""
        self._report(instance, Dispatcher.credits, credits_)

    def draining(self, instance: Instance) -> None:
        """Note that the worker takes no more requests."""
        self._report(instance, Dispatcher.draining)

    def note_load(self, instance: Instance, others: int, full_s: float) -> None:
        """Note what an instance's server says of its load.

        Args:
            instance: The server.
            others: Requests of others that it has.
            full_s: Time for which it counts as full, s.
        """
        load = others, self.monotonic() + full_s if full_s else 0.0
        self._report(instance, Dispatcher.note_load, load)

    def broken(self, instance: Instance, unseen: Container[int]) -> None:
        """Note that the stream ended, or could not be opened.

        Args:
            instance: The worker's instance.
            unseen: Numbers of requests that never left.
        """
        stream = self._streams.get(instance.id)
        before = stream and stream.dispatcher.states.get(instance.id)
        reached = before is not None and not before.lost
        self._report(instance, Dispatcher.down, unseen)
        if reached:
            self.report_soon()

    def results(self, instance: Instance, results: Iterable[Result]) -> None:
        """Take results of the worker."""
        now_s = self.monotonic()
        for result in results:
            stream = self._streams.get(instance.id)
            if stream is None:  # released by the result before
                break
            if result.more:
                self._part(stream.dispatcher, instance, result, now_s)
                continue
            refusal = result.error() if result.status in _REFUSALS else None
            decisions = stream.dispatcher.result(
                instance.id,
                result.number,
                refusal=refusal,
                now_s=now_s,
                cost=result.cost,
            )
            if result.cost and not (decisions and isinstance(decisions[0], Reply)):
                self.accounts[instance.model].count_unclaimed(instance, result.cost)
            self.execute(decisions, result, now_s)
        if instance.stages > 1:
            self._settle(instance, now_s)

    # ---- decisions -----------------------------------------------------------------------------

    def execute(
        self, decisions: Iterable[Decision], result: Result | None = None, now_s: float = 0.0
    ) -> None:
        """Execute decisions of the core.

        Args:
            decisions: What to do.
            result: The worker's answer that they follow from.
            now_s: When that came.
        """
        for decision in decisions:
            match decision:
                case Send(instance, pending):
                    if pending.attempts > 1:
                        self.accounts[instance.model].stats.retried += 1
                    self._streams[instance.id].port.send(pending.request)
                case Reply() if result is not None:
                    self._reply(decision, result, now_s)
                case Fail(pending, error):
                    self._end(pending, error)
                case _:
                    self._execute_other(decision)

    # ---- inside --------------------------------------------------------------------------------

    def _execute_other(self, decision: Decision) -> None:
        """Execute a decision of a rarer kind."""
        match decision:
            case Restart(pending):
                self._restart(pending)
            case Withdraw(instance, pending):
                self._streams[instance.id].port.withdraw(pending.request.number)
            case Dial(instance):
                self._dial(instance)
            case Release(instance):
                self._streams.pop(instance.id).port.close()
            case Reconsider(model, at_s):
                wait_s = max(at_s - self.monotonic(), 0.0)
                self.call_later(wait_s, self._reconsider, model)

    def _report(
        self, instance: Instance, event: Callable[..., list[Decision]], *values: object
    ) -> None:
        """Report an event of a worker to the dispatcher that it works for."""
        stream = self._streams.get(instance.id)
        if stream:
            now_s = self.monotonic()
            self.execute(event(stream.dispatcher, instance.id, *values, now_s=now_s))
            if instance.stages > 1:
                self._settle(instance, now_s)

    def _settle(self, instance: Instance, now_s: float) -> None:
        """Update the pipelines after an event of an instance of one of their stages."""
        self.execute(self.registry.settle(instance.model, now_s))

    def _dial(self, instance: Instance) -> None:
        dispatcher = self.registry.of(instance)
        self._streams[instance.id] = _OpenStream(self.connect(instance, self), dispatcher)

    def _restart(self, pending: PendingRequest) -> None:
        now_s = self.monotonic()
        self.execute(self.registry.restart(pending, next(self.numbers), now_s))

    def _reply(self, reply: Reply, result: Result, now_s: float) -> None:
        """Give a result to the request's caller, or to the next stage."""
        instance, pending = reply.instance, reply.pending
        if instance.feeds_next_stage and not result.status:
            forwarded = self.registry.forward(
                reply,
                result,
                number=next(self.numbers),
                inputs=self._stage_metadata.inputs_after(instance),
                now_s=now_s,
            )
            self.execute(forwarded)
            return
        model = pending.request.model
        account = self.accounts[model]
        if self.hellos[model].decoupled:
            account.stats.response(pending, result)
        self._end(pending, account.outcome(pending, instance, result, now_s))

    def _part(
        self, dispatcher: Dispatcher, instance: Instance, result: Result, now_s: float
    ) -> None:
        """Give the caller a response that is not the last; its request keeps its credit."""
        pending = dispatcher.part(instance.id, result.number, now_s)
        if pending is None or pending.receiver is None:
            return
        self.accounts[instance.model].stats.response(pending, result)
        try:
            pending.receiver.receive_part(instance, result.response)
        except ServiceError as error:
            self.execute([*dispatcher.cancel(pending), Fail(pending, error)])

    def _end(self, pending: PendingRequest, ended: Ended) -> None:
        if not self.end((pending.origin or pending).request.number, ended):
            self.count_unclaimed(pending.request.model, ended)

    def _reconsider(self, model: str) -> None:
        """Run a model's dispatcher again; nothing happens if the model is gone."""
        dispatcher = self.registry.find(model)
        if dispatcher is not None:
            self.execute(dispatcher.reconsider(self.monotonic()))

    def _open_accounts(self) -> None:
        for dispatcher in self.registry:
            routes = dispatcher.routes
            account = self.accounts.get(routes.model) or self.open_account(routes)
            account.routes = routes
            self.accounts[routes.model] = account

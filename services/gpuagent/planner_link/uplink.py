"""The stream to the planner: reports up, steps down, reconnecting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc

from cinquefoil.gpuagent.v1 import steps_pb2
from cinquefoil.gpuagent.v1.inventory_pb2 import ScaleOut as ScaleOutMessage
from cinquefoil.gpuagent.v1.records import ScaleOut
from cinquefoil.planner.v1 import planner_pb2 as pb
from services.gpuagent.core.model import Outcome
from services.gpuagent.planner_link import convert
from services.gpuagent.planner_link.node_report import NodeReport
from services.gpuagent.reconfigure.transactions import Transactions
from services.gpuagent.supervision.journal import TermJournal
from services.kit.backoff import Backoff
from services.kit.errors import ServiceError
from services.kit.rpc.reconnect import Reconnector
from services.kit.rpc.record_mapping import to_message
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


Part = Literal["node", "energy", "drifts"]


@dataclass(slots=True)
class PendingReports:
    """Reports to send next.

    Attributes:
        parts: What is newer: the node, its energy, or the profiles that are wrong.
        results: Of steps.
        scale_outs: GPUs whose clock can rise no more; of one GPU only the newest word counts.
    """

    parts: set[Part] = field(default_factory=set)
    results: list[steps_pb2.StepResult] = field(default_factory=list)
    scale_outs: dict[str, ScaleOut] = field(default_factory=dict)


class ReportOutbox:
    """Collects what changed until the stream has room for it, so a slow planner costs nothing."""

    def __init__(self) -> None:
        self._filled = asyncio.Event()
        self._mail = PendingReports()

    def renew(self, part: Part) -> None:
        """Mark a part of the report as changed since it was sent."""
        self._mail.parts.add(part)
        self._filled.set()

    def put(self, result: steps_pb2.StepResult) -> None:
        """Queue the result of a step."""
        self._mail.results.append(result)
        self._filled.set()

    def scale_out(self, scale_out: ScaleOut) -> None:
        """Report a GPU whose clock is at its maximum and too low for its load."""
        self._mail.scale_outs[scale_out.gpu_uuid] = scale_out
        self._filled.set()

    def reset(self) -> None:
        """Begin a new stream: it starts with the node, and older results mean nothing to it."""
        self._mail = PendingReports(self._mail.parts | {"node", "drifts"})
        self._filled.set()

    async def take(self) -> PendingReports:
        """Wait for something to send, and take all of it."""
        await self._filled.wait()
        self._filled.clear()
        mail, self._mail = self._mail, PendingReports()
        return mail


_log = logs.get("uplink")

_STEADY_S: Final = 5.0
_MOST_S: Final = 1.0
"""Longest time between two attempts to reach a planner, s: another may lead by then."""


@dataclass(slots=True, eq=False)
class Uplink:
    """The agent's side of PlannerService.Join.

    Attributes:
        planner: Where to dial.
        outbox: What is to be sent.
        report: The node and its energy.
        transactions: Carry out the planner's steps.
        terms: Admits steps of the planner that leads.
        cap_power: Takes the most power that the devices may draw, W, and the setting it is from.
    """

    planner: PlannerServiceAsyncStub
    outbox: ReportOutbox
    report: NodeReport
    transactions: Transactions
    terms: TermJournal
    cap_power: Callable[[float, str], None]
    _stream: int = 0
    _joined: bool = False
    _released: bool = False

    @property
    def released(self) -> bool:
        """True if no planner will move the segments here: one said so, or none ever answered.

        One that is away may come back, or another may lead: the segments serve meanwhile.
        """
        return self._released or not self._joined

    async def run(self) -> None:
        """Keep a stream open until cancelled; steps outlive the stream that requested them."""
        reconnector = Reconnector(
            "planner",
            self.transactions.node.clock,
            backoff=Backoff(maximum_s=_MOST_S),
            steady_s=_STEADY_S,
            errors=(grpc.aio.AioRpcError, ServiceError),
        )
        async with asyncio.TaskGroup() as executing:
            execute = executing.create_task
            await reconnector.run(partial(self._join, execute, reconnector.connected))

    async def _join(
        self, execute: Callable[..., asyncio.Task[None]], connected: Callable[[], None]
    ) -> None:
        """Open a stream and serve it until it ends."""
        self._stream += 1
        self.outbox.reset()
        call = self.planner.Join()
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(call), name="uplink.send")
                while isinstance(response := await call.read(), pb.JoinResponse):
                    connected()
                    if response.released:
                        self._released = self.report.reservations.leaving
                        continue
                    if response.HasField("power_share"):
                        self.cap_power(*convert.power_share(response.power_share))
                        continue
                    step = response.step
                    execute(self._execute(step, self._stream), name=f"step {step.step_id}")
                sending.cancel()
        finally:
            call.cancel()

    async def _send(self, call: grpc.aio.StreamStreamCall[pb.JoinRequest, Any]) -> None:
        """Send reports until cancelled: the node before the results that changed it."""
        while True:
            mail = await self.outbox.take()
            report = pb.JoinRequest()
            if "node" in mail.parts:
                report.node.CopyFrom(await self.report.offered())
                report.config_digest = self.report.config_digest
                report.address = self.report.address
                report.term = self.terms.highest.term
            if "energy" in mail.parts:
                report.energy.extend(convert.energy(self.report.accounts.list()))
            if "drifts" in mail.parts:
                report.drifts.CopyFrom(convert.drifts(self.report.watch.wrong))
            report.scale_out.extend(
                to_message(each, ScaleOutMessage) for each in mail.scale_outs.values()
            )
            results = [pb.JoinRequest(step_result=result) for result in mail.results]
            try:
                for request in (report, *results):
                    await call.write(request)
                self._joined = True
            except asyncio.InvalidStateError:  # the stream has ended; its reader gets the error
                return

    async def _execute(self, step: steps_pb2.Step, stream: int) -> None:
        try:
            await self.terms.admit(step.term)
            _log.info("planner's step", step=step.step_id, term=step.term)
            actions = convert.step(step)
            self.report.reservations.refuse(actions)
            outcome = await self.transactions.execute(actions)
        except ServiceError as error:
            outcome = Outcome(error, 0.0)
        if stream == self._stream:  # after a reconnection the planner has planned again
            self.outbox.put(convert.result(step.step_id, outcome))

"""Peers of a planner of many nodes: light agents and routers, each with its own connection.

They speak PlannerService as the real ones do. An agent does what steps say on a model of its GPUs,
at once; a router takes every routing table and says so, and notes when which bytes came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Final

import grpc

from benchmarks import _fleets as fleets
from cinquefoil.condition.v1.condition_pb2 import CONDITION_KIND_NODE_AWAY
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.backoff import Backoff
from services.kit.clock import RealClock
from services.kit.rpc import dial
from services.kit.rpc.reconnect import Reconnector
from services.kit.rpc.record_mapping import to_message

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

GPU_TYPE: Final = "a100-40gb"
MODEL: Final = "vision"
ZONE: Final = "US-CAL"
_REPORT_S: Final = 1.0
_MOST_S: Final = 1.0  # between two attempts, as the real ones
_WATCH: Final = "/cinquefoil.planner.v1.PlannerService/Watch"


@cache
def _gpu_type() -> inventory_pb2.GpuType:
    record = fleets.gpu_type(GPU_TYPE)
    message = to_message(record, inventory_pb2.GpuType)
    message.memory_slices = record.geometry.memory_slices
    message.profiles.extend(
        to_message(kind, inventory_pb2.SliceProfile) for kind in record.geometry.kinds
    )
    return message


@dataclass
class Agent:
    """An agent whose GPUs are numbers.

    Attributes:
        name: Of its node.
        index: Of the node in the fleet: where its workers listen.
        gpus: Number of its GPUs.
        moves: Number of moves of its workers to another port.
        meters: Set where it reports energy.
    """

    name: str
    index: int
    gpus: int
    moves: int = 0
    _slices: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    _segments: dict[str, inventory_pb2.SegmentSpec] = field(default_factory=dict)
    meters: asyncio.Event = field(default_factory=asyncio.Event)
    _said: asyncio.Queue[pb.JoinRequest] = field(default_factory=asyncio.Queue)
    _spent_j: float = 0.0
    _metered: pb.JoinRequest = field(default_factory=pb.JoinRequest)

    def __post_init__(self) -> None:
        self._slices = {f"GPU-{self.name}-{number}": set() for number in range(self.gpus)}
        self._meter()

    @property
    def serves(self) -> bool:
        """Return whether a worker of it may take requests."""
        return bool(self._segments)

    def move(self) -> str:
        """Move the first worker to another port, and report it; return its address."""
        self.moves += 1
        self._said.put_nowait(pb.JoinRequest(node=self.report()))
        return self._endpoint(0)

    def next_endpoint(self) -> str:
        """Return where `move` will have the first worker listen."""
        return self._endpoint(0, self.moves + 1)

    async def run(self, planner: Sequence[str]) -> None:
        """Stay joined until cancelled, and report energy once a second where it is metered."""
        async with dial(planner) as channel:
            backoff = Backoff(maximum_s=_MOST_S)
            reconnector = Reconnector(self.name, RealClock(), backoff=backoff)
            stub = PlannerServiceStub(channel)

            async def session() -> None:
                await self._session(stub, reconnector)

            await reconnector.run(session)

    async def _session(self, stub: PlannerServiceAsyncStub, reconnector: Reconnector) -> None:
        self._said = asyncio.Queue()
        self._said.put_nowait(pb.JoinRequest(node=self.report()))
        async for response in stub.Join(self._reports(self._said)):
            reconnector.connected()
            self._carry_out(response.step)

    async def _reports(self, said: asyncio.Queue[pb.JoinRequest]) -> AsyncIterator[pb.JoinRequest]:
        yield await said.get()
        # Reports of a thousand nodes do not come at one instant.
        due_s = time.monotonic() + _REPORT_S * (0.5 + self.index % 100 / 200)
        while True:
            wait_s = max(due_s - time.monotonic(), 0.001)
            try:
                report = await asyncio.wait_for(said.get(), wait_s)
            except TimeoutError:
                due_s += _REPORT_S
                if not self.meters.is_set():
                    continue
                report = self._energy()
            yield report

    def _energy(self) -> pb.JoinRequest:
        """Return the next report; the same message with other figures while no segment changes."""
        self._spent_j += 100.0 * _REPORT_S
        for gpu in self._metered.energy:
            gpu.total_j = self._spent_j
            for each in gpu.segments:
                each.active_j = self._spent_j / 2
        return self._metered

    def _meter(self) -> None:
        """Rebuild the report of energy, with the slices that run now."""
        self._metered = pb.JoinRequest(
            energy=[inventory_pb2.GpuEnergy(gpu_uuid=uuid) for uuid in self._slices]
        )
        by_uuid = {gpu.gpu_uuid: gpu for gpu in self._metered.energy}
        for name, spec in self._segments.items():
            by_uuid[spec.gpu_uuid].segments.add(segment_id=name, model=spec.model)

    def report(self) -> inventory_pb2.Node:
        """Return the node as it is."""
        kind = _gpu_type()
        return inventory_pb2.Node(
            name=self.name,
            zone=ZONE,
            simulated=True,
            gpus=[
                inventory_pb2.Gpu(
                    uuid=uuid,
                    index=number,
                    type=kind,
                    mig_enabled=True,
                    slices=[
                        inventory_pb2.Slice(
                            placement=inventory_pb2.Placement(profile=profile, start=start)
                        )
                        for profile, start in sorted(slices)
                    ],
                )
                for number, (uuid, slices) in enumerate(self._slices.items())
            ],
            segments=[
                inventory_pb2.Segment(
                    spec=spec,
                    state=inventory_pb2.SEGMENT_STATE_READY,
                    endpoints=[self._endpoint(number)],
                )
                for number, spec in enumerate(self._segments.values())
            ],
        )

    @property
    def host(self) -> str:
        """Where its workers listen."""
        return f"127.1.{self.index // 256}.{self.index % 256}"

    def _endpoint(self, number: int, moves: int | None = None) -> str:
        moved = 0 if number else self.moves if moves is None else moves
        return f"{self.host}:{20_000 + number + 64 * moved}"

    def _carry_out(self, step: steps_pb2.Step) -> None:
        for group in step.change.groups or (steps_pb2.ActionGroup(actions=[_alone(step)]),):
            for action in group.actions:
                self._act(action)
        self._meter()
        result = steps_pb2.StepResult(step_id=step.step_id, ok=True)
        self._said.put_nowait(pb.JoinRequest(node=self.report(), step_result=result))

    def _act(self, action: steps_pb2.Action) -> None:
        match action.WhichOneof("action"):
            case "create_slice":
                made = action.create_slice
                self._slices[made.gpu_uuid].add((made.placement.profile, made.placement.start))
            case "destroy_slice":
                gone = action.destroy_slice
                self._slices[gone.gpu_uuid].discard((gone.placement.profile, gone.placement.start))
            case "start_segment":
                spec = action.start_segment.spec
                self._segments[spec.segment_id] = spec
            case "stop_segment":
                self._segments.pop(action.stop_segment.segment_id, None)


def _alone(step: steps_pb2.Step) -> steps_pb2.Action:
    """Return the action of a step that has only one."""
    action, name = steps_pb2.Action(), step.WhichOneof("action")
    if name:
        getattr(action, name).CopyFrom(getattr(step, name))
    return action


@lru_cache(maxsize=4)
def _revision(raw: bytes) -> int:
    """Return the routing table's that a message brings; 0: none. All routers get the same bytes."""
    response = pb.WatchResponse.FromString(raw)
    return response.routing.revision or response.routing_change.revision


@dataclass
class Router:
    """A router without clients.

    Attributes:
        name: Id of the router.
        messages, received_bytes: Messages and bytes from the planner, so far.
        answered: Set by every message.
        sought: An endpoint that is waited for.
        found: Set when a message names it.
        found_s: Time of that message, monotonic, s.
    """

    name: str
    messages: int = 0
    received_bytes: int = 0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    sought: bytes = b"-"
    found: asyncio.Event = field(default_factory=asyncio.Event)
    found_s: float = 0.0
    _revision: int = 0
    _taken: asyncio.Event = field(default_factory=asyncio.Event)

    def seek(self, endpoint: str) -> None:
        """Wait for an endpoint from now on."""
        self.sought, self.found = endpoint.encode(), asyncio.Event()

    async def run(self, planner: Sequence[str]) -> None:
        """Follow the planner and report load once a second, until cancelled."""
        async with dial(planner) as channel, asyncio.TaskGroup() as tasks:
            for session in (self._watch, self._load):
                backoff = Backoff(maximum_s=_MOST_S)
                link = Reconnector(self.name, RealClock(), backoff=backoff, channel=channel)
                tasks.create_task(link.run(partial(session, channel)))

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_WATCH)
        async for raw in watch(pb.WatchRequest(routing_only=True).SerializeToString()):
            self._take(raw)

    def _take(self, raw: bytes) -> None:
        now_s = time.monotonic()
        self.answered.set()
        self.messages += 1
        self.received_bytes += len(raw)
        if not self.found.is_set() and self.sought in raw:
            self.found_s = now_s
            self.found.set()
        if revision := _revision(raw):
            self._revision = revision
            self._taken.set()

    async def _load(self, channel: grpc.aio.Channel) -> None:
        call = PlannerServiceStub(channel).ReportLoad()
        since_s = time.monotonic()
        try:
            while True:
                self._taken.clear()
                report = pb.ReportLoadRequest(router_id=self.name, routing_revision=self._revision)
                now_s = time.monotonic()
                report.window.FromNanoseconds(int((now_s - since_s) * 1e9))
                since_s = now_s
                report.models.add(model=MODEL, arrivals=1, answered=1)
                await call.write(report)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPORT_S):
                        await self._taken.wait()
        except asyncio.InvalidStateError:
            return
        finally:
            call.cancel()


class Observer:
    """An operator who watches everything, and reads it while something is waited for.

    Attributes:
        term: Of the planner that sent what was read last.
    """

    def __init__(self) -> None:
        self.term = 0
        self._raw = b""
        self._changed = asyncio.Event()

    async def run(self, planner: Sequence[str]) -> None:
        """Watch until cancelled."""
        async with dial(planner) as channel:
            watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_WATCH)

            async def session() -> None:
                self._raw = b""
                async for self._raw in watch(pb.WatchRequest().SerializeToString()):
                    self._changed.set()

            await Reconnector("observer", RealClock(), channel=channel).run(session)

    async def until_joined(self) -> None:
        """Return when no node is away."""

        def joined(said: pb.WatchResponse) -> bool:
            return all(each.kind != CONDITION_KIND_NODE_AWAY for each in said.conditions)

        await self._until(joined)

    async def until_next(self, term: int) -> None:
        """Return when a planner that leads after `term` has sent its plan and its routes."""
        await self._until(lambda said: said.routing.term > term and said.HasField("plan"))

    async def until_active(self) -> None:
        """Return when the newest plan is what runs."""
        await self._until(lambda said: said.plan.state == plan_pb2.PLAN_STATE_ACTIVE)

    def require_same_leader(self) -> None:
        """Raise where another planner leads than in the term of the last wait.

        Raises:
            RuntimeError: Figures are those of two planners: the host was too busy for the lease.
        """
        now = pb.WatchResponse.FromString(self._raw).routing.term
        if now != self.term:
            raise RuntimeError(
                f"leadership moved from term {self.term} to {now} during the measurement, so its "
                "figures are of no planner: measure on a host with less load"
            )

    async def _until(self, reached: Callable[[pb.WatchResponse], bool]) -> None:
        while True:
            self._changed.clear()
            if self._raw:
                said = pb.WatchResponse.FromString(self._raw)
                self.term = said.routing.term
                if reached(said):
                    return
            await self._changed.wait()

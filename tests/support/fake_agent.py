"""Peers of a planner: a carbon service, agents and a router, each over real gRPC.

The agent does what steps say on a model of its GPUs and refuses what hardware would refuse:
overlapping slices, destroying an occupied slice, starting on a slice that does not exist.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary
from zlib import crc32

import grpc

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.carbon.v1.carbon_pb2_grpc import (
    CarbonServiceServicer,
    add_CarbonServiceServicer_to_server,
)
from cinquefoil.condition.v1 import condition_pb2
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit import config
from services.kit.broadcast import Broadcast
from services.kit.config import carbon_sources
from services.kit.errors import NotFound
from services.kit.mig import Geometry
from services.kit.process.reload import Reloads
from services.kit.rpc import dial, serving
from services.planner import assembly
from services.planner.app import run
from services.planner.control.reconciler import Reconciler

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

GIB = 2**30
A100 = Geometry(
    memory_slices=8,
    kinds=(
        SliceProfile("1g.5gb", 19, 1, 1, tuple(range(7)), 7, 14, int(4.75 * GIB)),
        SliceProfile("2g.10gb", 14, 2, 2, (0, 2, 4), 3, 28, int(9.75 * GIB)),
        SliceProfile("3g.20gb", 9, 3, 4, (0, 4), 2, 42, int(19.62 * GIB)),
        SliceProfile("4g.20gb", 5, 4, 4, (0,), 1, 56, int(19.62 * GIB)),
        SliceProfile("7g.40gb", 0, 7, 8, (0,), 1, 98, int(39.5 * GIB)),
    ),
)


def deployment(
    folder: Path,
    carbon_port: int,
    nodes: tuple[str, ...] = ("node-a",),
    join: config.Join | None = None,
    **planner: Any,
) -> config.Deployment:
    """Return a deployment of `nodes`, one model of two variants, and quick triggers."""
    triggers = config.Triggers(
        min_interval_s=0.0,
        settle_s=0.3,
        intensity_dwell_s=0.0,
        answers_settle_s=0.0,
        scale_down_s=0.0,
        plans_per_hour=0,
    )
    forecast = config.LoadForecast(interval_s=1)  # so that a load which ends is soon forgotten
    slo = config.Slo(latency_s=0.2)
    variants = {
        name: config.Variant(
            file=folder / f"{name}.onnx",
            accuracy=accuracy,
            profile=config.AnalyticProfile(kind="analytic", gmacs_per_item=gmacs),
        )
        for name, accuracy, gmacs in (("small", 90.0, 1.0), ("large", 98.0, 15.0))
    }
    static = carbon_sources.StaticSource(kind="static", intensity_gco2e_per_kwh=100)
    return config.Deployment(
        version="v1",
        carbon=config.Carbon(
            zones={"Z": config.Zone(source=static)}, listen=f"127.0.0.1:{carbon_port}"
        ),
        nodes={
            name: config.Node(zone="Z", control=True, pue=1.2, orphan_timeout_s=6) for name in nodes
        },
        join=join,
        models={"digits": config.Model(slo=slo, demand_rps=60, variants=variants)},
        planner=config.Planner(
            **{
                "database": folder / "planner.sqlite3",
                "listen": "127.0.0.1:0",
                "triggers": triggers,
                "strategy": "base",
                "load_forecast": forecast,
                **planner,
            },
        ),
    )


# ---- carbon ------------------------------------------------------------------------------------


class Grid(CarbonServiceServicer):
    """A carbon service of one zone whose intensity a test sets."""

    def __init__(self) -> None:
        self.intensity: Broadcast[float | None] = Broadcast(None)
        self.forecast: carbon_pb2.Forecast | None = None  # for those who begin to watch
        self.port = 0

    async def ListZones(self, request: Any, context: Any) -> carbon_pb2.ListZonesResponse:
        return carbon_pb2.ListZonesResponse(zones=["Z"])

    async def GetIntensity(self, request: Any, context: Any) -> carbon_pb2.GetIntensityResponse:
        raise NotFound("the planner watches")

    async def GetHistory(self, request: Any, context: Any) -> carbon_pb2.GetHistoryResponse:
        raise NotFound("the planner watches")

    async def GetForecast(self, request: Any, context: Any) -> carbon_pb2.GetForecastResponse:
        raise NotFound("the planner watches")

    async def Watch(
        self, request: carbon_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[carbon_pb2.WatchResponse]:
        first = True
        async for value in self.intensity.follow():
            known = [] if value is None else [value]
            yield carbon_pb2.WatchResponse(
                snapshot=first,
                intensities=[
                    carbon_pb2.Intensity(
                        zone="Z", intensity_gco2e_per_kwh=each, forecast=self.forecast
                    )
                    for each in known
                ],
            )
            first = False


@asynccontextmanager
async def carbon(
    intensity: float | None = 100.0, port: int = 0, tls: config.Tls | None = None
) -> AsyncIterator[Grid]:
    """Serve a carbon service while the block runs."""
    grid = Grid()
    grid.intensity.publish(intensity)
    async with serving(
        f"127.0.0.1:{port}",
        lambda server: add_CarbonServiceServicer_to_server(grid, server),
        ("cinquefoil.carbon.v1.CarbonService",),
        tls=tls,
        grace_s=0,
    ) as server:
        grid.port = server.port
        yield grid


# ---- agent -------------------------------------------------------------------------------------


def _gpu_type() -> inventory_pb2.GpuType:
    return inventory_pb2.GpuType(
        name="a100-40gb",
        memory_slices=8,
        sm_count=108,
        idle_power_w=55,
        max_power_w=400,
        profiles=[
            inventory_pb2.SliceProfile(
                name=kind.name,
                gpu_instance_profile_id=kind.gpu_instance_profile_id,
                compute_slices=kind.compute_slices,
                memory_slices=kind.memory_slices,
                starts=kind.starts,
                max_count=kind.max_count,
                sm_count=kind.sm_count,
                memory_bytes=kind.memory_bytes,
            )
            for kind in A100.kinds
        ],
    )


Act = steps_pb2.Step | steps_pb2.Action
Refuse = Callable[[Act], str]


def endpoints(segment_id: str, processes: int) -> list[str]:
    """Return where the workers of a segment listen."""
    first = 20_000 + crc32(segment_id.encode()) % 20_000
    return [f"127.0.0.1:{first + number}" for number in range(processes)]


@dataclass
class Agent:
    """An agent with A100s.

    Attributes:
        node: Name of the node.
        gpus: UUIDs.
        zone: Electricity zone that it reports.
        refuse: Says why a step fails, or "" where it may be done.
        gate: Closed: steps wait.
        lag_s: Time between a step's result and the report of the node, s.
        slices, segments: The node's state, by GPU and by segment id.
        step_count: Number of steps that arrived.
        steps: Actions begun, in order, those of changes one by one.
        late: Reports that are still to come.
        leaving: The agent reports its GPUs as wanted.
        term: Highest term that it has seen.
        orders: Steps as they arrived.
        released: The planner has sent word that it need not wait.
        address: Address that it reports for itself.
        absent: Variants whose files are missing.
    """

    node: str
    gpus: tuple[str, ...]
    zone: str = "Z"
    refuse: Refuse = lambda _step: ""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    lag_s: float = 0.01
    slices: dict[str, set[Placement]] = field(default_factory=dict)
    segments: dict[str, inventory_pb2.SegmentSpec] = field(default_factory=dict)
    step_count: int = 0
    steps: list[Act] = field(default_factory=list)
    late: int = 0
    leaving: bool = False
    term: int = 0
    orders: list[steps_pb2.Step] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    meter_j: float = 1000.0
    address: str = ""
    absent: tuple[str, ...] = ()
    said: asyncio.Queue[planner_pb2.JoinRequest] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.gate.set()
        self.slices = self.slices or {gpu: set() for gpu in self.gpus}

    def report(self) -> inventory_pb2.Node:
        """Return the node as it is."""
        gpus = [
            inventory_pb2.Gpu(
                uuid=uuid,
                index=index,
                type=_gpu_type(),
                mig_enabled=True,
                wanted=self.leaving,
                slices=[
                    inventory_pb2.Slice(
                        placement=inventory_pb2.Placement(profile=each.profile, start=each.start)
                    )
                    for each in sorted(self.slices[uuid], key=lambda place: place.start)
                ],
            )
            for index, uuid in enumerate(self.gpus)
        ]
        segments = [
            inventory_pb2.Segment(
                spec=spec,
                state=inventory_pb2.SEGMENT_STATE_READY,
                endpoints=endpoints(segment_id, spec.processes),
            )
            for segment_id, spec in self.segments.items()
        ]
        conditions = [
            condition_pb2.Condition(
                kind=condition_pb2.CONDITION_KIND_MODEL_FILE_MISSING,
                subject=f"variant/digits/{variant}",
                sentence=f"{self.node} has no file of {variant}",
            )
            for variant in self.absent
        ]
        return inventory_pb2.Node(
            name=self.node, zone=self.zone, gpus=gpus, segments=segments, conditions=conditions
        )

    def say(self) -> None:
        """Report the node as it is now."""
        self.said.put_nowait(
            planner_pb2.JoinRequest(node=self.report(), term=self.term, address=self.address)
        )

    def meter(self, joules: float) -> None:
        """Add energy to every GPU's counter, and report it."""
        self.meter_j += joules
        energy = [inventory_pb2.GpuEnergy(gpu_uuid=gpu, total_j=self.meter_j) for gpu in self.gpus]
        self.said.put_nowait(planner_pb2.JoinRequest(energy=energy))

    async def live(self, stub: PlannerServiceAsyncStub) -> None:
        """Join once and do the steps that come, until the stream ends."""
        call = stub.Join(self._words())
        async with asyncio.TaskGroup() as tasks:
            async for response in call:
                if response.released:
                    self.released.set()
                    continue
                self.step_count += 1
                self.orders.append(response.step)
                tasks.create_task(self._do(response.step))

    async def _words(self) -> AsyncIterator[planner_pb2.JoinRequest]:
        while True:
            yield await self.said.get()

    async def _do(self, step: steps_pb2.Step) -> None:
        await self.gate.wait()
        message = self._all_or_nothing(_acts(step))
        status = "FAILED_PRECONDITION" if message else ""
        result = steps_pb2.StepResult(
            step_id=step.step_id, ok=not message, status=status, message=message
        )
        # The result first: a planner must not take it for a report.
        self.said.put_nowait(planner_pb2.JoinRequest(step_result=result))
        self.late += 1
        await asyncio.sleep(self.lag_s)
        self.say()
        self.late -= 1

    def _all_or_nothing(self, acts: Sequence[Act]) -> str:
        slices = {gpu: set(places) for gpu, places in self.slices.items()}
        segments = dict(self.segments)
        for act in acts:
            self.steps.append(act)
            message = self.refuse(act) or self._apply(act)
            if message:
                self.slices, self.segments = slices, segments
                return message
        return ""

    def _apply(self, step: Act) -> str:
        match step.WhichOneof("action"):
            case "create_slice":
                gpu, place = step.create_slice.gpu_uuid, _place(step.create_slice.placement)
                fault = A100.problem({*self.slices[gpu], place})
                if not fault:
                    self.slices[gpu].add(place)
                return fault
            case "destroy_slice":
                gpu, place = step.destroy_slice.gpu_uuid, _place(step.destroy_slice.placement)
                if any(
                    (spec.gpu_uuid, _place(spec.placement)) == (gpu, place)
                    for spec in self.segments.values()
                ):
                    return f"{place} is in use"
                self.slices[gpu].discard(place)
            case "start_segment":
                spec = step.start_segment.spec
                if _place(spec.placement) not in self.slices[spec.gpu_uuid]:
                    return f"no slice {_place(spec.placement)}"
                self.segments[spec.segment_id] = spec
            case "stop_segment":
                self.segments.pop(step.stop_segment.segment_id, None)
        return ""


def _acts(step: steps_pb2.Step) -> list[Act]:
    """Return the actions of a step."""
    if not step.HasField("change"):
        return [step]
    return [action for group in step.change.groups for action in group.actions]


def _place(message: inventory_pb2.Placement) -> Placement:
    return Placement(message.profile, message.start)


def _print_why(task: asyncio.Task[None]) -> None:
    """Print why an agent's stream ended: a test that waits for a plan of its node waits in vain."""
    if not task.cancelled() and (error := task.exception()) is not None:
        print(f"{task.get_name()}: {error!r}", file=sys.stderr)  # noqa: T201 - the test's output


@asynccontextmanager
async def living(agent: Agent, stub: PlannerServiceAsyncStub) -> AsyncIterator[asyncio.Task[None]]:
    """Run an agent that joins and obeys while the block runs; leaving the block kills it."""
    agent.said = asyncio.Queue()
    agent.say()
    task = asyncio.create_task(agent.live(stub), name=f"agent.{agent.node}")
    task.add_done_callback(_print_why)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# ---- planner -----------------------------------------------------------------------------------

_reconcilers: WeakKeyDictionary[Any, Reconciler] = WeakKeyDictionary()
_reloads: WeakKeyDictionary[Any, Reloads] = WeakKeyDictionary()


async def reload(stub: PlannerServiceAsyncStub, changed: config.Deployment) -> None:
    """Apply a changed file to the planner; an exception refuses the file."""
    await _reloads[stub].apply(changed)


def reconciler(stub: PlannerServiceAsyncStub) -> Reconciler:
    """Return the inside of the planner that answers `stub`: it runs in the test's process."""
    return _reconcilers[stub]


@asynccontextmanager
async def planner(
    deployment: config.Deployment, changed: config.Deployment | None = None
) -> AsyncIterator[PlannerServiceAsyncStub]:
    """Run the planner while the block runs, and talk to it.

    Args:
        deployment: Its file at the start.
        changed: The same, as it was read again before the planner led; None: as it was.
    """
    stop = asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    made: list[Reconciler] = []
    reloads = Reloads(deployment)
    reloads.deployment = changed or deployment

    def make(*arguments: Any) -> Reconciler:
        made.append(Reconciler(*arguments))
        return made[-1]

    task = asyncio.create_task(
        run(deployment, stop, port.set_result, reloads=reloads), name="planner"
    )
    try:
        with patch.object(assembly, "Reconciler", make):
            await asyncio.wait((task, port), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        address = f"127.0.0.1:{port.result()}"
        operator = deployment.identity("operator", "ada")
        plain = grpc.aio.insecure_channel
        async with plain(address) if operator is None else dial(address, operator) as channel:
            stub = PlannerServiceStub(channel)
            _reconcilers[stub] = made[0]
            _reloads[stub] = reloads
            yield stub
            stop.set()
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def watch(
    stub: PlannerServiceAsyncStub, holds: Callable[[planner_pb2.WatchResponse], bool]
) -> planner_pb2.WatchResponse:
    """Return the first snapshot of the Watch stream for which `holds`."""
    async with asyncio.timeout(45):
        call = stub.Watch(planner_pb2.WatchRequest())
        async for response in call:
            if holds(response):
                call.cancel()
                return response
    raise AssertionError("the stream ended first")


async def active(stub: PlannerServiceAsyncStub, version: int) -> planner_pb2.WatchResponse:
    """Return the snapshot with plan `version`, or a later one, active."""
    return await watch(
        stub,
        lambda seen: seen.plan.version >= version and seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE,
    )


@dataclass
class Suite:
    """A planner with all it meets. Attributes: stub, grid, agent (joined)."""

    stub: PlannerServiceAsyncStub
    grid: Grid
    agent: Agent

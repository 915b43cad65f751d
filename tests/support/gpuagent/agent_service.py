"""An agent of simulated GPUs, and the planner that it dials: real gRPC on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from cinquefoil.gpuagent.v1 import gpuagent_pb2, inventory_pb2, steps_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import (
    PlannerServiceServicer,
    add_PlannerServiceServicer_to_server,
)
from services.gpuagent.app import run
from services.gpuagent.devices.fake_nvml.library import gpu_uuid
from services.kit import config
from services.kit.config import carbon_sources
from services.kit.process.reload import Reloads
from services.kit.rpc import dial, serving

if TYPE_CHECKING:
    from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceAsyncStub

NODE = "node-a"
GPU = gpu_uuid(NODE, 0, "a100-40gb")
WHOLE_GPU = gpu_uuid(NODE, 1, "t4")
PATIENCE_S = 45.0


def deployment(folder: Path, model: Path, planner: str, **node: Any) -> config.Deployment:
    """Return a deployment of one A100, one T4 and one model whose batches take milliseconds."""
    variant = config.Variant(
        file=model,
        accuracy=0.9,
        profile=config.AnalyticProfile(kind="analytic", gmacs_per_item=2.0),
    )
    return config.Deployment(
        version="v1",
        log_level="error",
        carbon=config.Carbon(
            zones={
                "Z": config.Zone(
                    source=carbon_sources.StaticSource(kind="static", intensity_gco2e_per_kwh=1.0)
                )
            }
        ),
        nodes={
            NODE: config.Node(
                listen="127.0.0.1:0",
                zone="Z",
                simulated=("a100-40gb", "t4"),
                state_dir=folder,
                **node,
            )
        },
        models={
            "m": config.Model(slo=config.Slo(latency_s=1.0), demand_rps=1, variants={"v": variant})
        },
        planner=config.Planner(listen="127.0.0.1:0", address=planner),
    )


class Planner(PlannerServiceServicer):
    """A planner that sends what the test sets and keeps what it receives."""

    def __init__(self) -> None:
        self.node = inventory_pb2.Node()
        self.config_digest = ""
        self.energy: dict[str, inventory_pb2.GpuEnergy] = {}
        self.drifts: list[planner_pb2.ProfileDrift] = []
        self.first_requests: list[planner_pb2.JoinRequest] = []
        self.scale_outs: list[inventory_pb2.ScaleOut] = []
        self._results: dict[str, steps_pb2.StepResult] = {}
        self._responses: asyncio.Queue[planner_pb2.JoinResponse | None] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._count = 0

    async def Join(
        self, request_iterator: AsyncIterator[planner_pb2.JoinRequest], context: Any
    ) -> AsyncIterator[planner_pb2.JoinResponse]:
        """Serve one agent."""
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            while (response := await self._responses.get()) is not None:
                yield response
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, requests: AsyncIterator[planner_pb2.JoinRequest]) -> None:
        first = True
        async for request in requests:
            if first:
                self.first_requests.append(request)
                first = False
            if request.HasField("node"):
                self.node = request.node
                self.config_digest = request.config_digest
            if request.HasField("drifts"):
                self.drifts = list(request.drifts.drifts)
            self.energy |= {energy.gpu_uuid: energy for energy in request.energy}
            self.scale_outs.extend(request.scale_out)
            if request.HasField("step_result"):
                self._results[request.step_result.step_id] = request.step_result
            async with self._changed:
                self._changed.notify_all()

    def drop_stream(self) -> None:
        """End the agent's stream."""
        self._responses.put_nowait(None)

    def release(self) -> None:
        """Release a leaving agent from its wait."""
        self._responses.put_nowait(planner_pb2.JoinResponse(released=True))

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true of the agent's reports."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(true)

    async def send_step(self, **action: Any) -> steps_pb2.StepResult:
        """Send one step and return its result."""
        self._count += 1
        step_id = f"step-{self._count}"
        step = steps_pb2.Step(step_id=step_id, **action)
        self._responses.put_nowait(planner_pb2.JoinResponse(step=step))
        await self.until(lambda: step_id in self._results)
        return self._results[step_id]

    # ---- steps by name

    async def create(self, profile: str, start: int, gpu: str = GPU) -> steps_pb2.StepResult:
        """Create a slice."""
        return await self.send_step(
            create_slice=steps_pb2.CreateSlice(gpu_uuid=gpu, placement=placement(profile, start))
        )

    async def destroy(self, profile: str, start: int, gpu: str = GPU) -> steps_pb2.StepResult:
        """Destroy a slice."""
        return await self.send_step(
            destroy_slice=steps_pb2.DestroySlice(gpu_uuid=gpu, placement=placement(profile, start))
        )

    async def lock_clock(self, clock_mhz: int, gpu: str = GPU) -> steps_pb2.StepResult:
        """Hold a clock; 0: give it back."""
        return await self.send_step(
            lock_clock=steps_pb2.LockClock(gpu_uuid=gpu, clock_mhz=clock_mhz)
        )

    async def start(self, spec: inventory_pb2.SegmentSpec) -> steps_pb2.StepResult:
        """Start a segment."""
        return await self.send_step(start_segment=steps_pb2.StartSegment(spec=spec))

    async def stop(self, segment_id: str, grace_s: int = 5) -> steps_pb2.StepResult:
        """Stop a segment."""
        stop = steps_pb2.StopSegment(segment_id=segment_id)
        stop.grace.FromSeconds(grace_s)
        return await self.send_step(stop_segment=stop)

    async def change(self, *groups: Sequence[steps_pb2.Action]) -> steps_pb2.StepResult:
        """Send several actions as one step."""
        in_order = [steps_pb2.ActionGroup(actions=group) for group in groups]
        return await self.send_step(change=steps_pb2.Change(groups=in_order))

    def segment(self, segment_id: str) -> inventory_pb2.Segment | None:
        """Return a segment of the last report."""
        found = (s for s in self.node.segments if s.spec.segment_id == segment_id)
        return next(found, None)

    def slices(self, gpu: str = GPU) -> list[str]:
        """Return the slices of a GPU in the last report."""
        return [
            f"{entry.placement.profile}@{entry.placement.start}"
            for reported in self.node.gpus
            if reported.uuid == gpu
            for entry in reported.slices
        ]


def placement(profile: str, start: int) -> inventory_pb2.Placement:
    """Return a placement."""
    return inventory_pb2.Placement(profile=profile, start=start)


def segment_spec(segment_id: str = "s-1", **changes: Any) -> inventory_pb2.SegmentSpec:
    """Return a segment on the A100's first 3g.20gb."""
    values: dict[str, Any] = {
        "segment_id": segment_id,
        "model": "m",
        "variant": "v",
        "batch_size": 4,
        "processes": 1,
        "gpu_uuid": GPU,
        "placement": placement("3g.20gb", 0),
    }
    return inventory_pb2.SegmentSpec(**(values | changes))


def create(profile: str, start: int, gpu: str = GPU) -> steps_pb2.Action:
    """Return the action that creates a slice."""
    what = steps_pb2.CreateSlice(gpu_uuid=gpu, placement=placement(profile, start))
    return steps_pb2.Action(create_slice=what)


def destroy(profile: str, start: int, gpu: str = GPU) -> steps_pb2.Action:
    """Return the action that destroys a slice."""
    what = steps_pb2.DestroySlice(gpu_uuid=gpu, placement=placement(profile, start))
    return steps_pb2.Action(destroy_slice=what)


def start(spec: inventory_pb2.SegmentSpec) -> steps_pb2.Action:
    """Return the action that starts a segment."""
    return steps_pb2.Action(start_segment=steps_pb2.StartSegment(spec=spec))


def stop(segment_id: str) -> steps_pb2.Action:
    """Return the action that stops a segment."""
    action = steps_pb2.Action(stop_segment=steps_pb2.StopSegment(segment_id=segment_id))
    action.stop_segment.grace.FromSeconds(5)
    return action


def lock_clock(clock_mhz: int, gpu: str = GPU) -> steps_pb2.Action:
    """Return the action that holds a clock."""
    return steps_pb2.Action(lock_clock=steps_pb2.LockClock(gpu_uuid=gpu, clock_mhz=clock_mhz))


def workers_in(folder: Path) -> list[psutil.Process]:
    """Return the worker processes that run with spec files below `folder`."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])  # a zombie has none
        if "services.gpuagent.worker" in (process.info["cmdline"] or ())
        and process.info["cmdline"][-1].startswith(f"{folder}/")
    ]


@asynccontextmanager
async def planning(port: int = 0) -> AsyncIterator[tuple[Planner, int]]:
    """Serve a planner; give it and its port."""
    planner = Planner()  # type: ignore[abstract] # agents call Join only
    async with serving(
        f"127.0.0.1:{port}",
        lambda server: add_PlannerServiceServicer_to_server(planner, server),
        ["cinquefoil.planner.v1.PlannerService"],
        grace_s=0,
    ) as server:
        yield planner, server.port


@dataclass
class Agent:
    """A running agent. Attributes: stub (its service), reloads (of its file), stop (ends it)."""

    stub: GpuAgentServiceAsyncStub
    reloads: Reloads
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def node(self) -> inventory_pb2.Node:
        """Return its node."""
        response = await self.stub.GetNode(gpuagent_pb2.GetNodeRequest())
        return response.node

    async def energy(self) -> dict[str, inventory_pb2.GpuEnergy]:
        """Return its accounts by GPU."""
        response = await self.stub.GetEnergy(gpuagent_pb2.GetEnergyRequest())
        return {entry.gpu_uuid: entry for entry in response.gpus}


@asynccontextmanager
async def agent(settings: config.Deployment) -> AsyncIterator[Agent]:
    """Run an agent in this process; it drains its workers at the end."""
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    reloads = Reloads(settings)
    running = run(settings, stop, port.set_result, reloads=reloads)
    task = asyncio.create_task(running, name="agent")
    await asyncio.wait([task, port], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        async with dial(f"127.0.0.1:{port.result()}") as channel:
            yield Agent(GpuAgentServiceStub(channel), reloads, stop)
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)

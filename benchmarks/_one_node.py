"""One node of simulated GPUs with real workers, a real router before it, and us as its planner.

Agent, router and workers are processes of their own; the load comes from this one.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from inference import grpc_service_pb2 as oip
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.gpuagent.devices.fake_nvml.library import gpu_uuid
from services.kit.net import free_port
from services.local.demo import model_family

NODE, GPU_TYPE = "node-0", "a100-40gb"
GPU = gpu_uuid(NODE, 0, GPU_TYPE)
IMAGE = bytes(4 * 64)
PATIENCE_S = 60.0


def placement(name: str) -> inventory_pb2.Placement:
    """Return the placement that "3g.20gb@4" names."""
    profile, _, start = name.partition("@")
    return inventory_pb2.Placement(profile=profile, start=int(start))


class Planner:
    """Speaks to the agent and the router as the planner does, and decides nothing.

    Attributes:
        node: As the agent reported it last.
        routed: Ids of the segments that the routing table names.
        revision: The routing table's.
    """

    def __init__(self) -> None:
        self.node = inventory_pb2.Node()
        self.routed: frozenset[str] = frozenset()
        self.revision = 0
        self.acknowledged = 0
        self._steps: asyncio.Queue[steps_pb2.Step] = asyncio.Queue()
        self._results: dict[str, asyncio.Future[steps_pb2.StepResult]] = {}
        self._changed = asyncio.Condition()

    # ---- what the benchmark says

    async def change(self, *groups: Collection[steps_pb2.Action]) -> None:
        """Send the agent a change, and wait for its result."""
        in_order = [steps_pb2.ActionGroup(actions=group) for group in groups]
        step_id = f"step-{len(self._results)}"
        self._results[step_id] = asyncio.get_running_loop().create_future()
        self._steps.put_nowait(
            steps_pb2.Step(step_id=step_id, change=steps_pb2.Change(groups=in_order))
        )
        result = await asyncio.wait_for(self._results[step_id], PATIENCE_S)
        assert result.ok, result.message

    async def route(self, segment_ids: Collection[str]) -> None:
        """Announce who may serve, once the agent says that they do; wait for the router."""
        await self.until(lambda: set(segment_ids) <= self.ready())
        self.routed, self.revision = frozenset(segment_ids), self.revision + 1
        await self._notify()
        await self.until(lambda: self.acknowledged >= self.revision)

    async def until(self, true: Any) -> None:
        """Wait until a condition holds for the reports received."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(true)

    def ready(self) -> set[str]:
        """Return the segments that are ready."""
        ready = inventory_pb2.SEGMENT_STATE_READY
        return {each.spec.segment_id for each in self.node.segments if each.state == ready}

    def capacity(self) -> float:
        """Return the share of the GPU's compute slices that serves now, 0..1."""
        serving = self.ready() & self.routed
        profiles = {p.name: p.compute_slices for gpu in self.node.gpus for p in gpu.type.profiles}
        specs = (each.spec for each in self.node.segments if each.spec.segment_id in serving)
        return sum(profiles[spec.placement.profile] for spec in specs) / 7

    # ---- what agent and router hear

    async def join(self, requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        """PlannerService.Join."""
        reading = asyncio.create_task(self._read(requests), name="planner.read")
        try:
            while True:
                step = await self._steps.get()
                yield planner_pb2.JoinResponse(step=step).SerializeToString()
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        async for body in requests:
            request = planner_pb2.JoinRequest.FromString(body)
            if request.HasField("node"):
                self.node = request.node
            if request.HasField("step_result"):
                self._results[request.step_result.step_id].set_result(request.step_result)
            await self._notify()

    async def watch(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        """PlannerService.Watch."""
        while True:
            sent_revision = self.revision
            yield planner_pb2.WatchResponse(routing=self._table()).SerializeToString()
            await self._after(sent_revision)

    async def report_load(self, reports: AsyncIterator[bytes], _: Any) -> bytes:
        """PlannerService.ReportLoad."""
        async for body in reports:
            self.acknowledged = planner_pb2.ReportLoadRequest.FromString(body).routing_revision
            await self._notify()
        return b""

    async def carbon(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        """CarbonService.Watch."""
        response = carbon_pb2.WatchResponse(snapshot=True)
        response.intensities.add(zone="z", intensity_gco2e_per_kwh=200.0)
        yield response.SerializeToString()
        await asyncio.Event().wait()

    def _table(self) -> plan_pb2.RoutingTable:
        table = plan_pb2.RoutingTable(revision=self.revision, plan_version=1)
        for model in ("stays", "moves"):
            here = [
                each
                for each in self.node.segments
                if each.spec.segment_id in self.routed and each.spec.model == model
            ]
            routes = table.models.add(model=model, slo_latency_s=0.4, slo_percentile=95)
            for each in here:
                routes.instances.add(
                    endpoint=each.endpoints[0],
                    segment_id=each.spec.segment_id,
                    variant="v",
                    accuracy=1.0,
                    share=1 / len(here),
                    credits=each.spec.batch_size,
                    zone="z",
                    pue=1.0,
                )
        return table

    async def _after(self, revision: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.revision > revision)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Answer:
    """One request. Attributes: sent_s, latency_s (inf where it was lost)."""

    sent_s: float
    latency_s: float


@dataclass
class World:
    """All of it, running. Attributes: planner, answers by model, as they come."""

    planner: Planner
    router: str
    answers: dict[str, list[Answer]] = field(default_factory=dict)

    @asynccontextmanager
    async def load(self, rates_rps: Mapping[str, float], deadline_s: float) -> AsyncIterator[None]:
        """Send requests to each model at a constant rate while the block runs."""
        stop = asyncio.Event()
        async with grpc.aio.insecure_channel(self.router) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer

            async def infer_once(model: str) -> None:
                began_s = time.perf_counter()
                try:
                    await infer(request(model), timeout=deadline_s)
                    latency_s = time.perf_counter() - began_s
                except grpc.aio.AioRpcError:
                    latency_s = float("inf")
                self.answers.setdefault(model, []).append(Answer(began_s, latency_s))

            async def send(model: str, rate_rps: float, tasks: asyncio.TaskGroup) -> None:
                due_s = time.perf_counter()
                while not stop.is_set():
                    tasks.create_task(infer_once(model))
                    due_s += 1 / rate_rps
                    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))

            async with asyncio.TaskGroup() as tasks:
                for model, rate_rps in rates_rps.items():
                    tasks.create_task(send(model, rate_rps, tasks))
                try:
                    yield
                finally:
                    stop.set()


def request(model: str) -> oip.ModelInferRequest:
    """Return a request for one image."""
    tensor = oip.ModelInferRequest.InferInputTensor(name="image", datatype="FP32", shape=[1, 64])
    return oip.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[IMAGE])


@asynccontextmanager
async def world(folder: Path, gmacs_per_item: float) -> AsyncIterator[World]:
    """Start agent and router; they end with the block."""
    planner = Planner()
    (folder / "v.onnx").write_bytes(model_family.build("linear"))
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(_served(planner))
        router = f"127.0.0.1:{free_port()}"
        config = folder / "cinquefoil.yaml"
        config.write_text(yaml.safe_dump(_deployment(folder, port, router, gmacs_per_item)))
        for service in ("gpuagent", "router"):
            await stack.enter_async_context(_process(service, config))
        await planner.until(lambda: planner.node.name == NODE)
        yield World(planner, router)


def _deployment(folder: Path, port: int, router: str, gmacs_per_item: float) -> dict[str, Any]:
    peer = {"address": f"127.0.0.1:{port}"}
    profile = {"kind": "analytic", "gmacs_per_item": gmacs_per_item}
    variant = {"file": str(folder / "v.onnx"), "accuracy": 1.0, "profile": profile}
    model = {"slo": {"latency_s": 0.4}, "demand_rps": 1, "variants": {"v": variant}}
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    node = {
        "zone": "z",
        "simulated": [GPU_TYPE],
        "listen": "127.0.0.1:0",
        "state_dir": str(folder / "state"),
    }
    return {
        "version": "v1",
        "log_level": "error",
        "carbon": {**peer, "zones": {"z": {"source": source}}},
        "planner": peer,
        "nodes": {NODE: node},
        "models": {"stays": model, "moves": model},
        "router": {"listen": router, "report_interval_s": 0.1},
    }


@asynccontextmanager
async def _served(planner: Planner) -> AsyncIterator[int]:
    service = "/cinquefoil.planner.v1.PlannerService"
    handlers: dict[str, Any] = {
        f"{service}/Join": grpc.stream_stream_rpc_method_handler(planner.join),
        f"{service}/Watch": grpc.unary_stream_rpc_method_handler(planner.watch),
        f"{service}/ReportLoad": grpc.stream_unary_rpc_method_handler(planner.report_load),
        "/cinquefoil.carbon.v1.CarbonService/Watch": grpc.unary_stream_rpc_method_handler(
            planner.carbon
        ),
    }
    server = grpc.aio.server()
    for path, handler in handlers.items():
        _, name, method = path.split("/")
        generic = grpc.method_handlers_generic_handler(name, {method: handler})
        server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def _process(service: str, config: Path) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.cli", service, "serve"),
        env={**os.environ, "CINQUEFOIL_CONFIG": str(config)},
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of the others do not exceed; lost requests are infinite."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

"""The same segment, live: the agent and its workers as processes, the GPU's time simulated.

This process stands for the router: one queue, each worker gets what its credits allow, and
learns how long it waited.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import yaml

from benchmarks._agent import agent, beside
from benchmarks.miad import setting
from cinquefoil.gpuagent.v1 import gpuagent_pb2, inventory_pb2
from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from inference import grpc_service_pb2 as oip
from services.gpuagent.devices.fake_nvml.library import gpu_uuid
from services.kit.net import free_port
from services.local.demo import model_family

if TYPE_CHECKING:
    from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceAsyncStub

NODE = "node-0"
GPU = gpu_uuid(NODE, 0, setting.GPU)
TICK_S = 0.5
_TENSOR = oip.ModelInferRequest.InferInputTensor(name="image", datatype="FP32", shape=[1, 64])


def request(model: str) -> bytes:
    """Return a request for one image."""
    return oip.ModelInferRequest(
        model_name=model, inputs=[_TENSOR], raw_input_contents=[bytes(4 * 64)]
    ).SerializeToString()


REQUEST = request("m")


@dataclass(slots=True)
class Live:
    """A node under load.

    Attributes:
        agent: The agent's service.
        rate_rps: Load from now on.
        request: The request that is sent.
        seed: Of the arrivals.
        answers: End and latency of each request, s.
        clocks: Time of each reading of the clock, s, and its value, MHz.
    """

    agent: GpuAgentServiceAsyncStub
    rate_rps: float
    request: bytes = REQUEST
    seed: int = 0
    answers: list[tuple[float, float]] = field(default_factory=list)
    clocks: list[tuple[float, int]] = field(default_factory=list)
    _queue: deque[float] = field(default_factory=deque)
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def energy_j(self) -> float:
        """Return the GPU's metered energy so far, J."""
        response = await self.agent.GetEnergy(gpuagent_pb2.GetEnergyRequest())
        return response.gpus[0].total_j

    async def power_w(self, seconds: float) -> float:
        """Return the mean power of the whole GPU while so much time passes, W."""
        began_j, began_s = await self.energy_j(), time.monotonic()
        await asyncio.sleep(seconds)
        return (await self.energy_j() - began_j) / (time.monotonic() - began_s)

    def latencies_s(self, since_s: float, until_s: float) -> list[float]:
        """Return the latencies of what was answered in a stretch of time, s."""
        return [latency for at, latency in self.answers if since_s <= at < until_s]

    async def send(self) -> None:
        """Send requests as a Poisson process, until cancelled."""
        rng, due_s = np.random.default_rng(self.seed), time.monotonic()
        while True:
            due_s += rng.exponential(1 / self.rate_rps)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            self._queue.append(due_s)
            async with self._came:
                self._came.notify_all()

    async def watch(self) -> None:
        """Read the clock, for ever."""
        while True:
            response = await self.agent.GetNode(gpuagent_pb2.GetNodeRequest())
            self.clocks.append((time.monotonic(), response.node.gpus[0].clock_mhz))
            await asyncio.sleep(TICK_S)

    async def carry(self, endpoint: str) -> None:
        """Take requests to one worker, for ever."""
        async with grpc.aio.insecure_channel(endpoint) as channel:
            call = WorkerServiceStub(channel).Execute()
            out: dict[int, float] = {}
            first = await call.read()
            assert isinstance(first, pb.ExecuteResponse)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._give(call, out, first.hello.credits))
                while isinstance(response := await call.read(), pb.ExecuteResponse):
                    now_s = time.monotonic()
                    for result in response.results:
                        came_s = out.pop(result.id)
                        self.answers.append((now_s, now_s - came_s))
                    async with self._came:
                        self._came.notify_all()

    async def _give(self, call: Any, out: dict[int, float], credits_: int) -> None:
        number = 0
        while True:
            async with self._came:
                await self._came.wait_for(lambda: self._queue and len(out) < credits_)
            work = []
            while self._queue and len(out) < credits_:
                number, came_s = number + 1, self._queue.popleft()
                out[number] = came_s
                waited_s = time.monotonic() - came_s
                work.append(pb.Work(id=number, request=self.request, waited_s=waited_s))
            if work:
                await call.write(pb.ExecuteRequest(work=work))


@asynccontextmanager
async def node(folder: Path, rate_rps: float, *, loop: bool) -> AsyncIterator[Live]:
    """Run an agent with the segment under load while the block runs."""
    (folder / "v.onnx").write_bytes(model_family.build("linear"))
    address = f"127.0.0.1:{free_port()}"
    config = folder / "cinquefoil.yaml"
    config.write_text(yaml.safe_dump(_deployment(folder, address, loop=loop)))
    async with agent(config, address) as stub:
        endpoints = await _started(stub)
        live = Live(stub, rate_rps)
        carrying = (live.carry(endpoint) for endpoint in endpoints)
        async with beside([live.send(), live.watch(), *carrying]):
            yield live


async def _started(stub: GpuAgentServiceAsyncStub) -> list[str]:
    spec = inventory_pb2.SegmentSpec(
        segment_id="s-1",
        model="m",
        variant="v",
        batch_size=setting.BATCH_SIZE,
        processes=setting.PROCESSES,
        gpu_uuid=GPU,
        placement=inventory_pb2.Placement(profile="whole"),
    )
    desired = gpuagent_pb2.DesiredGpu(gpu_uuid=GPU, segments=[spec])
    request = gpuagent_pb2.ReconfigureRequest(gpus=[desired])
    await stub.Reconfigure(request, wait_for_ready=True, timeout=60)
    response = await stub.GetNode(gpuagent_pb2.GetNodeRequest())
    return list(response.node.segments[0].endpoints)


def _deployment(folder: Path, address: str, *, loop: bool) -> dict[str, Any]:
    profile = {"kind": "analytic", "gmacs_per_item": setting.GMACS_PER_ITEM}
    variant = {"file": str(folder / "v.onnx"), "accuracy": 1.0, "profile": profile}
    slo = {"latency_s": setting.SLO_S, "percentile": setting.PERCENTILE}
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    return {
        "version": "v1",
        "log_level": "error",
        "carbon": {"zones": {"z": {"source": source}}},
        "planner": {"address": f"127.0.0.1:{free_port()}"},
        "nodes": {
            NODE: {
                "zone": "z",
                "simulated": [setting.GPU],
                "listen": address,
                "state_dir": str(folder / "state"),
                "clock_loop": "miad" if loop else "off",
                "clock_floor": setting.FLOOR,
            }
        },
        "models": {"m": {"slo": slo, "demand_rps": 1, "variants": {"v": variant}}},
    }

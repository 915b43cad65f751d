"""A worker as a real process, the tiny models it serves, and a router that speaks to it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from inference import grpc_service_pb2 as oip
from services.gpuagent.core.batch_costs import CostCurve, Costs
from services.gpuagent.core.worker_slot import Grant
from services.gpuagent.core.worker_spec import WorkerSpec
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened
from services.kit.net import free_port
from services.kit.rpc import dial

SLICE = "MIG-00000000-0000-0000-0000-000000000001"


def save_model(path: Path) -> Path:
    """Write a model of two inputs: y = x + 1, and picked = [10, 20, 30][index].

    An index that is out of bounds passes every check of shapes and fails while it runs.
    """
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "one"], ["y"]),
            helper.make_node("Gather", ["table", "index"], ["picked"]),
        ],
        "tiny",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]),
            helper.make_tensor_value_info("index", TensorProto.INT64, ["n"]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2]),
            helper.make_tensor_value_info("picked", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("table", TensorProto.FLOAT, [3], [10.0, 20.0, 30.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


def flat_costs(latency_s: float, energy_j: float, *, batch_size: int) -> Costs:
    """Return costs that grow with the items of a batch."""
    latency = tuple((latency_s * (1 + 0.1 * items),) for items in range(batch_size))
    energy = tuple((energy_j * items,) for items in range(1, batch_size + 1))
    return Costs((CostCurve(1.0, latency, energy),))


def infer_request(
    values: Sequence[Sequence[float]], index: Iterable[int] = (), *, request_id: str = ""
) -> oip.ModelInferRequest:
    """Return a request to the model of `save_model`, raw."""
    x = np.array(values, np.float32)
    picks = np.array(list(index) or [0] * len(x), np.int64)
    request = oip.ModelInferRequest(model_name="m", id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.inputs.add(name="index", datatype="INT64", shape=picks.shape)
    request.raw_input_contents.extend([x.tobytes(), picks.tobytes()])
    return request


def output(response: bytes, name: str) -> list[float]:
    """Return one FP32 output of a serialized ModelInferResponse, flat."""
    answer = oip.ModelInferResponse.FromString(response)
    for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        if tensor.name == name:
            values: list[float] = np.frombuffer(raw, np.float32).tolist()
            return values
    raise AssertionError(f"no output {name}")


@dataclass
class Router:
    """A router's end of one Execute stream."""

    call: Any
    hello: pb.Hello = field(default_factory=pb.Hello)
    draining: bool = False
    ended: bool = False
    results: dict[int, pb.Result] = field(default_factory=dict)

    async def send(self, *work: pb.Work, cancelled: Iterable[int] = ()) -> None:
        """Send work in one message."""
        await self.call.write(pb.ExecuteRequest(work=work, cancelled_ids=cancelled))

    async def receive(self) -> None:
        """Take in one response, or note the end of the stream."""
        response = await self.call.read()
        if not isinstance(response, pb.ExecuteResponse):
            self.ended = True
            return
        if response.HasField("hello"):
            self.hello = response.hello
        self.draining |= response.draining
        self.results |= {result.id: result for result in response.results}

    async def wait_for(self, *ids: int) -> list[pb.Result]:
        """Return these results once all are there."""
        while not self.results.keys() >= set(ids) and not self.ended:
            await self.receive()
        return [self.results[number] for number in ids]

    async def infer(self, request: oip.ModelInferRequest, work_id: int = 1) -> pb.Result:
        """Send one request and return its result."""
        await self.send(work(work_id, request))
        return (await self.wait_for(work_id))[0]


def work(work_id: int, request: oip.ModelInferRequest, remaining_s: float = 0.0) -> pb.Work:
    """Return a piece of work."""
    return pb.Work(id=work_id, request=request.SerializeToString(), remaining_s=remaining_s)


async def until(true: Callable[[], bool], every_s: float = 0.005) -> None:
    """Wait until something is true that has no event; longer between looks that cost more."""
    while not true():  # noqa: ASYNC110 - another process's writes wake no task
        await asyncio.sleep(every_s)


@asynccontextmanager
async def routed(endpoint: str) -> AsyncIterator[Router]:
    """Open an Execute stream to a worker and take in its hello."""
    async with dial(endpoint) as channel:
        call = WorkerServiceStub(channel).Execute(wait_for_ready=True, timeout=30)
        router = Router(call)
        await router.receive()
        yield router
        call.cancel()


@dataclass(frozen=True)
class Running:
    """A worker process and the agent's view of its ledger."""

    process: asyncio.subprocess.Process
    spec: WorkerSpec
    counters: SharedCounters

    async def exit_status(self) -> int:
        """Wait for the process to end."""
        return await asyncio.wait_for(self.process.wait(), 45)


def worker_spec(folder: Path, file: Path, /, **changes: Any) -> WorkerSpec:
    """Return the spec of a worker of one process."""
    usual: dict[str, Any] = {
        "segment_id": "s-1",
        "model": "m",
        "variant": "v",
        "file": file,
        "batch_size": 4,
        "listen": f"127.0.0.1:{free_port()}",
        "ledger": folder / "gpu.ledger",
        "slot": 0,
        "siblings": (0,),
        "slice_uuid": SLICE,
        "costs": flat_costs(0.01, 1.0, batch_size=4),
        "log_level": "error",
        "orphan_timeout_s": 600.0,  # no agent of a test beats
    }
    return WorkerSpec(**(usual | changes))


@asynccontextmanager
async def worker(spec: WorkerSpec) -> AsyncIterator[Running]:
    """Run a worker process; it is killed at the end where it still lives."""
    path = spec.ledger.parent / f"worker-{spec.slot}.json"
    spec.save(path)
    with opened(spec.ledger) as counters:
        counters.beat()
        counters.set_grant(spec.slot, Grant(idle_power_w=10.0))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.gpuagent.worker", str(path), env=dict(os.environ)
        )
        try:
            yield Running(process, spec, counters)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
                await process.wait()

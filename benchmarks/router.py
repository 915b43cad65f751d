"""The router beside the smallest thing that could stand in its place, in one run.

    python -m benchmarks.router [--json FILE]

`direct` calls a server that answers at once; `passthrough` is the smallest grpc.aio proxy (raw
bytes, uvloop) before it; `cinquefoil` is the whole router (queue, shares, receipts, metrics) before
a worker that answers at once. Each is a process of its own; the load comes from this one. On a
small machine the processes share the cores, so only the ratios mean something.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
import uvloop

from benchmarks.harness import Figures, main
from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.gpuagent.v1 import worker_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from inference import grpc_service_pb2 as pb
from services.kit import logs
from services.kit.deployment import Deployment
from services.kit.rpc.channel import MAX_MESSAGE_BYTES
from services.router.app import run

INFER = "/inference.GRPCInferenceService/ModelInfer"
PATHS = ("direct", "passthrough", "cinquefoil")
SIZES = {"small": 196, "image": 602_112}  # bytes of tensor: 49 and 3 x 224 x 224 floats
IN_FLIGHT = (1, 64)
SECONDS, ROUNDS = 1.5, 3  # of each measurement; medians are taken over the rounds

Context = grpc.aio.ServicerContext[Any, Any]
Report = Callable[[int], None]
Measured = dict[str, dict[str, float]]

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)
ANSWER = pb.ModelInferResponse(
    model_name="m",
    model_version="1",
    outputs=[pb.ModelInferResponse.InferOutputTensor(name="y", datatype="FP32", shape=[1, 10])],
    raw_output_contents=[bytes(40)],
).SerializeToString()


def request(tensor_bytes: int) -> bytes:
    """Return a serialized request."""
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="x", datatype="FP32", shape=[1, tensor_bytes // 4]
    )
    return pb.ModelInferRequest(
        model_name="m", id="1", inputs=[tensor], raw_input_contents=[bytes(tensor_bytes)]
    ).SerializeToString()


# ---- the servers, each a process ---------------------------------------------------------------


async def backend(report: Report) -> None:
    """Answer at once: as a server, as a worker; and be planner and carbon to the router."""
    server = grpc.aio.server(options=_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")

    async def infer(_: bytes, __: Context) -> bytes:
        return ANSWER

    async def execute(frames: AsyncIterator[bytes], _: Context) -> AsyncIterator[bytes]:
        hello = worker_pb2.Hello(segment_id="s", model="m", variant="v", credits=64)
        yield worker_pb2.ExecuteResponse(hello=hello).SerializeToString()
        receipt = worker_pb2.Receipt(energy_j=1.0, energy_method="model", batch_size=1)
        async for frame in frames:
            works = worker_pb2.ExecuteRequest.FromString(frame).work
            yield worker_pb2.ExecuteResponse(
                results=[
                    worker_pb2.Result(id=work.id, response=ANSWER, receipt=receipt)
                    for work in works
                ]
            ).SerializeToString()

    async def routes(_: bytes, __: Context) -> AsyncIterator[bytes]:
        instance = plan_pb2.Instance(
            endpoint=f"127.0.0.1:{port}", segment_id="s", variant="v", share=1, credits=64, zone="z"
        )
        model = plan_pb2.ModelRoutes(model="m", slo_latency_s=1, instances=[instance])
        table = plan_pb2.RoutingTable(revision=1, models=[model])
        yield planner_pb2.WatchResponse(routing=table).SerializeToString()
        await asyncio.Event().wait()

    async def load(reports: AsyncIterator[bytes], _: Context) -> bytes:
        async for _report in reports:
            pass
        return b""

    async def intensity(_: bytes, __: Context) -> AsyncIterator[bytes]:
        response = carbon_pb2.WatchResponse(snapshot=True)
        response.intensities.add(zone="z", intensity_gco2e_per_kwh=200.0)
        yield response.SerializeToString()
        await asyncio.Event().wait()

    handlers: dict[str, Any] = {
        INFER: grpc.unary_unary_rpc_method_handler(infer),
        "/cinquefoil.gpuagent.v1.WorkerService/Execute": grpc.stream_stream_rpc_method_handler(
            execute
        ),
        "/cinquefoil.planner.v1.PlannerService/Watch": grpc.unary_stream_rpc_method_handler(routes),
        "/cinquefoil.planner.v1.PlannerService/ReportLoad": grpc.stream_unary_rpc_method_handler(
            load
        ),
        "/cinquefoil.carbon.v1.CarbonService/Watch": grpc.unary_stream_rpc_method_handler(
            intensity
        ),
    }
    await _serve(server, handlers, lambda: report(port))


async def passthrough(report: Report, backend_port: int) -> None:
    """Hand every request on and every answer back."""
    server = grpc.aio.server(options=_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{backend_port}", options=_OPTIONS) as channel:
        call: Any = channel.unary_unary(INFER)

        async def infer(body: bytes, _: Context) -> bytes:
            answer: bytes = await call(body)
            return answer

        handlers: dict[str, Any] = {INFER: grpc.unary_unary_rpc_method_handler(infer)}
        await _serve(server, handlers, lambda: report(port))


async def _serve(
    server: grpc.aio.Server, handlers: dict[str, Any], started: Callable[[], None]
) -> None:
    for path, handler in handlers.items():
        _, service, method = path.split("/")
        generic = grpc.method_handlers_generic_handler(service, {method: handler})
        server.add_generic_rpc_handlers((generic,))
    await server.start()
    started()
    await server.wait_for_termination()


async def cinquefoil(report: Report, backend_port: int) -> None:
    """The router as it is."""
    peer = {"address": f"127.0.0.1:{backend_port}"}
    zone = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}
    variant = {
        "file": "v.onnx",
        "accuracy": 1,
        "profile": {"kind": "analytic", "gmacs_per_item": 1},
    }
    deployment = Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {**peer, "zones": {"z": zone}},
            "planner": peer,
            "nodes": {"n": {"zone": "z"}},
            "models": {"m": {"slo": {"latency_s": 1}, "demand_rps": 1, "variants": {"v": variant}}},
            "router": {"listen": "127.0.0.1:0"},
        }
    )
    await run(deployment, asyncio.Event(), report)


def _process(serve: Callable[..., Awaitable[None]], pipe: Connection, *arguments: int) -> None:
    logs.configure("benchmark", level="error")
    uvloop.run(serve(pipe.send, *arguments))  # type: ignore[arg-type]  # a coroutine


@contextmanager
def servers() -> Iterator[dict[str, int]]:
    """Run the three servers; yield their ports by path."""
    context = multiprocessing.get_context("spawn")
    ports: dict[str, int] = {}
    running = []
    try:
        for name, serve in zip(PATHS, (backend, passthrough, cinquefoil), strict=True):
            ours, theirs = context.Pipe()
            arguments = (ports["direct"],) if ports else ()
            process = context.Process(
                target=_process, args=(serve, theirs, *arguments), daemon=True, name=name
            )
            process.start()
            running.append(process)
            ports[name] = ours.recv()
        yield ports
    finally:
        for process in running:
            process.kill()
            process.join()


# ---- the load ----------------------------------------------------------------------------------


async def load(call: Any, body: bytes, in_flight: int, duration_s: float) -> list[float]:
    """Keep so many requests in flight for so long; return each one's latency, s."""
    end_s = time.perf_counter() + duration_s
    latencies_s: list[float] = []

    async def caller() -> None:
        while (begin_s := time.perf_counter()) < end_s:
            answer = await call(body)
            latencies_s.append(time.perf_counter() - begin_s)
            assert answer.startswith(ANSWER)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(caller())
    return latencies_s


async def measure(ports: dict[str, int], duration_s: float, rounds: int) -> Measured:
    """Return ms per request (1 in flight) and req/s (64), medians over rounds that take turns."""
    seen: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for size, tensor_bytes in SIZES.items():
            body = request(tensor_bytes)
            for in_flight in IN_FLIGHT:
                for path in PATHS:
                    address = f"127.0.0.1:{ports[path]}"
                    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
                        call: Any = channel.unary_unary(INFER)
                        await load(call, body, in_flight, duration_s / 5)
                        latencies_s = await load(call, body, in_flight, duration_s)
                    figure = (
                        statistics.median(latencies_s) * 1e3
                        if in_flight == 1
                        else len(latencies_s) / duration_s
                    )
                    seen.setdefault((f"{size}_{in_flight}", path), []).append(figure)
    found: Measured = {}
    for (case, path), figures in seen.items():
        found.setdefault(case, {})[path] = statistics.median(figures)
    return found


def figures() -> tuple[Figures]:
    """Run it all; ratios say how many times better than the pass-through Cinquefoil is."""
    with servers() as ports:
        found = uvloop.run(measure(ports, SECONDS, ROUNDS))
    rows = []
    for case, values in found.items():
        ratio = values["cinquefoil"] / values["passthrough"]
        better = 1 / ratio if case.endswith("_1") else ratio
        rows.append({"load": case, **values, "cinquefoil / passthrough": better})
    title = "router: ms per request with 1 in flight, req/s with 64"
    return (Figures(title, rows, "All processes share the cores: only the ratios mean something."),)


if __name__ == "__main__":
    main("router", figures)

"""Cost of forwarding: requests through the home's router, beside the same sent there directly.

Client, both routers and the worker run in one process, wired as their services wire them: the
difference in processor time is what the home's router and its call to the far one take. Blocks of
each path alternate, so that other work on the machine meets all alike. The baseline is a proxy of
grpc.aio that reads nothing of what it passes on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc
import numpy as np
import uvloop
import yaml

from benchmarks.request_path import running_router, running_worker
from benchmarks.router import messages
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.records import Forward
from services.kit.clock import RealClock
from services.kit.config.loader import load
from services.kit.rpc.record_mapping import to_message
from services.kit.telemetry import logs
from services.router.adapters.region_routers import RegionRouters

EXAMPLE: Final = Path(__file__).parents[2] / "cinquefoil.yaml"
BLOCK: Final = 100
_FAR: Final = "far"
_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"

Infer = Callable[[Any], Awaitable[Any]]


def measure(blocks: int) -> list[dict[str, Any]]:
    """Measure every path in so many blocks."""
    logs.configure("benchmark", level="error")
    return uvloop.run(_measured(blocks))


async def _measured(blocks: int) -> list[dict[str, Any]]:
    body = messages.request("small")
    cpu_s: dict[str, list[float]] = {}
    latencies_s: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-forward-")))
        endpoint = await stack.enter_async_context(running_worker(folder))
        far = await stack.enter_async_context(running_router(endpoint))
        regions = await stack.enter_async_context(_regions(folder, far))
        home = await stack.enter_async_context(running_router(endpoint, regions))
        proxy = await stack.enter_async_context(_proxy(far))
        paths: dict[str, Infer] = {}
        for name, port in (("direct", far), ("forwarded", home), ("grpc.aio proxy", proxy)):
            channel = await stack.enter_async_context(messages.channel(port))
            paths[name] = messages.infer(channel)
        for turn in range(blocks + 1):
            for name in list(paths) if turn % 2 else list(paths)[::-1]:
                _let(regions)
                spent_s, took_s = await _block(paths[name], body)
                if turn:  # the first warms up
                    cpu_s.setdefault(name, []).append(spent_s)
                    latencies_s.setdefault(name, []).extend(took_s)
        report = _sent(regions)
    direct_s, direct_p50_s = np.median(cpu_s["direct"]), np.median(latencies_s["direct"])
    return [
        {
            "path": name,
            "requests": len(latencies_s[name]),
            "cpu_us": 1e6 * float(np.median(cpu_s[name])),
            "adds_cpu_us": 1e6 * float(np.median(cpu_s[name]) - direct_s),
            "p50_ms": 1e3 * float(np.median(latencies_s[name])),
            "adds_p50_ms": 1e3 * float(np.median(latencies_s[name]) - direct_p50_s),
            "forwarded": report if name == "forwarded" else 0,
            "load_average": os.getloadavg()[0],
        }
        for name in cpu_s
    ]


async def _block(infer: Infer, body: Any) -> tuple[float, list[float]]:
    """Return the processor time of a request, s, and each one's time."""
    took_s, before_s = [], time.process_time()
    for _ in range(BLOCK):
        began_s = time.perf_counter()
        await infer(body)
        took_s.append(time.perf_counter() - began_s)
    return (time.process_time() - before_s) / BLOCK, took_s


@asynccontextmanager
async def _regions(folder: Path, far_port: int) -> AsyncIterator[RegionRouters]:
    """Yield connections to the far router, once it is measured."""
    far = {"planner": "127.0.0.1:1", "router": f"127.0.0.1:{far_port}"}
    document = yaml.safe_load(EXAMPLE.read_text()) | {
        "regions": {"name": "home", "peers": {_FAR: far}}
    }
    file = folder / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(document))
    found = RegionRouters(load(file), RealClock())
    keeping = asyncio.create_task(found.keep())
    while not found.reached:  # noqa: ASYNC110 - no event says that a ping was answered
        await asyncio.sleep(0.01)
    yield found
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping


def _let(regions: RegionRouters) -> None:
    """Permit as much as there is, as a planner does every few seconds."""
    rate = Forward(messages.MODEL, _FAR, 1e6, timedelta(seconds=30))
    regions.use([to_message(rate, planner_pb2.Forward)])


def _sent(regions: RegionRouters) -> int:
    report = planner_pb2.ReportLoadRequest()
    regions.fill(report)
    return sum(each.sent for each in report.region_loads)


@asynccontextmanager
async def _proxy(port: int) -> AsyncIterator[int]:
    """Run a proxy that passes bytes on; yield its port."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(_METHOD)

        async def pass_on(body: bytes, _: Any) -> bytes:
            return bytes(await call(body, timeout=30))

        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(pass_on)
        service, method = _METHOD[1:].split("/")
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
        found = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield found
        await server.stop(0)

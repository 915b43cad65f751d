"""HTTP beside gRPC: CPU time of the servers per request, and latency of one request at a time.

Three ways to the same worker, in turns: the router's gRPC, its HTTP, and HTTP by a process of its
own in front of its gRPC (`http_proxy`). The client's time counts in the latency alone.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.router import messages
from benchmarks.router.paths import cinquefoil, direct, http_proxy
from benchmarks.router.processes import Server
from services.kit.net import free_port

_IN_FLIGHT = 16

Send = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class HttpCost:
    """One way to the worker, medians over the rounds.

    Attributes:
        way: "grpc", "http" or "http_proxy".
        cpu_us: CPU time per request of all servers but the worker, us.
        alone_ms: Latency of one request at a time, ms.
    """

    way: str
    cpu_us: float
    alone_ms: float


async def http_costs(folder: Path, *, rounds: int, requests: int) -> list[HttpCost]:
    """Measure the three ways, `requests` requests of each in a round."""
    async with AsyncExitStack() as stack:
        own = {name: folder / name for name in ("direct", "router", "proxy")}
        for each in own.values():
            each.mkdir()
        backend = await stack.enter_async_context(direct(own["direct"], 0))
        ports = free_port(), free_port()
        router = await stack.enter_async_context(
            cinquefoil(own["router"], backend.port, http_port=ports[0])
        )
        proxy = await stack.enter_async_context(http_proxy(own["proxy"], ports[1], router.port))
        channel = await stack.enter_async_context(messages.channel(router.port))
        body = messages.request("small")
        ways: dict[str, tuple[list[Server], list[Send]]] = {
            "grpc": ([router], [lambda: messages.infer(channel)(body)] * _IN_FLIGHT),
            "http": ([router], [await _connected(stack, ports[0]) for _ in range(_IN_FLIGHT)]),
            "http_proxy": (
                [router, proxy],
                [await _connected(stack, ports[1]) for _ in range(_IN_FLIGHT)],
            ),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(rounds + 1):  # the first one warms up
            for name, (servers, sends) in ways.items():
                cost = await _measured(servers, sends, requests)
                if turn:
                    found[name].append(cost)
    return [
        HttpCost(name, median(cpu for cpu, _ in each), median(alone for _, alone in each))
        for name, each in found.items()
    ]


async def _measured(servers: list[Server], sends: list[Send], requests: int) -> tuple[float, float]:
    """Return CPU time per request, us, and the median latency of one at a time, ms."""
    before_s = sum(server.cpu_s() for server in servers)
    each = requests // len(sends)
    await asyncio.gather(*(_repeat(send, each) for send in sends))
    cpu_us = (sum(server.cpu_s() for server in servers) - before_s) / (each * len(sends)) * 1e6
    alone = [await _timed(sends[0]) for _ in range(requests // 10)]
    return cpu_us, median(alone)


async def _repeat(send: Send, number: int) -> None:
    for _ in range(number):
        await send()


async def _timed(send: Send) -> float:
    started_s = time.perf_counter()
    await send()
    return (time.perf_counter() - started_s) * 1e3


async def _connected(stack: AsyncExitStack, port: int) -> Send:
    """Return what sends a request in JSON over a connection of its own, and reads the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    shape = messages.SHAPES["small"]
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": [0.0] * shape[1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    path = f"/v2/models/{messages.MODEL}/infer"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body

    async def send() -> bytes:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        size = answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        return await reader.readexactly(int(size))

    return send

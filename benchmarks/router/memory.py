"""Memory of a waiting request, beside its own bytes.

The requests go through the pass-through to the router, which holds them: its only worker never
answers. So each of the two has every request open, and the smallest proxy shows what gRPC takes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.router import messages
from benchmarks.router.paths import passthrough
from benchmarks.router.site import site
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub

COUNTS = {"small": (1000, 3000), "image": (50, 150)}
"""By size: memory with the second number waiting less that with the first is what they cost."""

_HELD_S = 3600.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Memory:
    """Of requests of one size in one process.

    Attributes:
        size: Of messages.SHAPES.
        path: "cinquefoil" or "passthrough".
        body_bytes: Of one request.
        per_1000_mib: Resident memory of 1,000 that wait.
        beside_body_kib: Of one request, beyond its bytes.
    """

    size: str
    path: str
    body_bytes: int
    per_1000_mib: float
    beside_body_kib: float


async def memory(folder: Path) -> list[Memory]:
    """Hold requests, and measure the memory that they take."""
    return [found for size in messages.SHAPES for found in await _memory(folder / size, size)]


async def _memory(folder: Path, size: str) -> list[Memory]:
    few, many = COUNTS[size]
    before_folder = folder / "before"
    before_folder.mkdir(parents=True)
    async with (
        site(folder, 1.0, 1, 0.0, max_queue=2 * many) as (here, running),
        passthrough(before_folder, here.router.port) as before,
        messages.channel(here.router.port) as status_channel,
        messages.channel(before.port) as channel,
    ):
        running.worker.service_s = _HELD_S
        servers = {"cinquefoil": here.router, "passthrough": before}
        async with _waiting(channel, status_channel, size, few):
            first = {path: server.rss_bytes() for path, server in servers.items()}
            async with _waiting(channel, status_channel, size, many - few, few):
                second = {path: server.rss_bytes() for path, server in servers.items()}
    return [_found(size, path, (second[path] - first[path]) / (many - few)) for path in servers]


def _found(size: str, path: str, each_bytes: float) -> Memory:
    body_bytes = len(messages.request(size))
    beside_kib = (each_bytes - body_bytes) / 2**10
    return Memory(size, path, body_bytes, 1000 * each_bytes / 2**20, beside_kib)


@asynccontextmanager
async def _waiting(
    channel: grpc.aio.Channel, router: grpc.aio.Channel, size: str, number: int, already: int = 0
) -> AsyncIterator[None]:
    """Hold so many requests, beside those that wait already, while the block runs."""
    body = messages.request(size)
    calls: list[Any] = [messages.infer(channel)(body, timeout=_HELD_S) for _ in range(number)]
    stub = RouterServiceStub(router)
    while True:
        status = await stub.GetStatus(router_pb2.GetStatusRequest())
        if status.models[0].queue_depth + status.models[0].in_flight == already + number:
            break
        assert not any(call.done() for call in calls), "a request does not wait"
        await asyncio.sleep(_LOOK_S)
    yield
    for call in calls:
        call.cancel()

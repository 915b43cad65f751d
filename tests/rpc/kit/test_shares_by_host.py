"""Where no identities are checked, no host takes the connections or calls that others need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from services.kit.errors import NotFound, PermissionDenied
from services.kit.h2.admission import EVERYBODY, KNOWN, Payer
from services.kit.http import connections
from services.kit.http.server import serving_http
from services.kit.rpc import Limits, guard, serving
from services.kit.rpc.guard import Tarpit

_HERE = "127.0.0.1"


def _as_host(host: str) -> Payer:
    """Return whose share a caller takes: all but 127.0.0.1 count as other machines."""
    address = host.rpartition(":")[2]
    return EVERYBODY if address == _HERE else Payer(address, KNOWN)


async def _slow(request: web.Request) -> web.Response:
    await asyncio.sleep(30.0)
    return web.Response()


async def _requested(stack: AsyncExitStack, port: int, source: str) -> asyncio.StreamReader:
    """Begin a request that is answered late."""
    reader, writer = await asyncio.open_connection(_HERE, port, local_addr=(source, 0))
    stack.callback(writer.close)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    return reader


async def _open(readers: list[asyncio.StreamReader]) -> int:
    """Return how many connections were not closed."""
    await asyncio.sleep(0.2)
    return sum(not reader.at_eof() for reader in readers)


async def test_one_host_has_half_of_the_connections_of_an_http_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others have the rest but an eighth, which callers on this machine still find."""
    monkeypatch.setattr(connections, "local_or_host", _as_host)
    app = web.Application()
    app.router.add_get("/", _slow)
    async with (
        serving_http("127.0.0.1:0", app, max_connections=16, by_host=True, grace_s=0.0) as port,
        AsyncExitStack() as stack,
    ):
        held = {
            source: await _open([await _requested(stack, port, source) for _ in range(16)])
            for source in ("127.0.0.2", "127.0.0.3", _HERE)
        }

    assert held == {"127.0.0.2": 8, "127.0.0.3": 6, _HERE: 2}


async def test_half_requests_of_a_host_give_way_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stops within heads is served, and no other pays for it."""
    monkeypatch.setattr(connections, "local_or_host", _as_host)
    app = web.Application()
    app.router.add_get("/", _slow)
    async with (
        serving_http("127.0.0.1:0", app, max_connections=8, by_host=True, grace_s=0.0) as port,
        AsyncExitStack() as stack,
    ):
        other, half = [await _requested(stack, port, "127.0.0.3") for _ in range(3)], []
        for _ in range(4):
            reader, writer = await asyncio.open_connection(_HERE, port, local_addr=("127.0.0.2", 0))
            stack.callback(writer.close)
            writer.write(b"GET / HT")
            half.append(reader)
        await asyncio.sleep(0.1)
        whole = [await _requested(stack, port, "127.0.0.2") for _ in range(4)]
        found = await _open(whole), await _open(half), await _open(other)

    assert found == (4, 0, 3)


async def test_one_host_has_half_of_the_calls_over_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over the product's own transport."""
    monkeypatch.setattr(guard, "local_or_host", _as_host)
    started = 0

    async def wait(requests: AsyncIterator[bytes], context: Any) -> bytes:
        nonlocal started
        started += 1
        async for _ in requests:
            pass
        return b""

    def register(server: grpc.aio.Server) -> None:
        handler: Any = grpc.stream_unary_rpc_method_handler(wait)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("a.B", {"Wait": handler}),)
        )

    async with AsyncExitStack() as stack:
        running_server = await stack.enter_async_context(
            serving("127.0.0.1:0", register, [], limits=Limits(calls=16), grace_s=0.0)
        )

        async def called(source: str, count: int) -> int:
            """Begin calls of a host; return how many were refused."""
            monkeypatch.setattr(guard, "host_of", lambda _: f"ipv4:{source}")
            before = started
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(f"127.0.0.1:{running_server.port}")
            )
            calls: list[Any] = [channel.stream_unary("/a.B/Wait")() for _ in range(count)]
            stack.push_async_callback(asyncio.gather, *calls, return_exceptions=True)
            for call in calls:
                stack.callback(call.cancel)
            async with asyncio.timeout(45):
                while started - before + sum(call.done() for call in calls) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return sum(call.done() for call in calls)

        assert await called("127.0.0.2", 12) == 4
        assert await called("127.0.0.3", 12) == 6
        # A refused call may end here before it has ended there: the next one finds room.
        assert 0 in [await called(_HERE, 1) for _ in range(2)]


async def test_refusals_of_strangers_wait_and_no_more_of_them_than_may() -> None:
    """Over gRPC's C core, which begins the next call of a connection as soon as one is refused."""
    tarpit = Tarpit(1)
    waiting = asyncio.create_task(tarpit.hold(PermissionDenied("no")))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await tarpit.hold(PermissionDenied("no"))
        await Tarpit(1).hold(NotFound("of one who may call"))

    assert not waiting.done()
    waiting.cancel()


async def test_over_grpcio_compressed_requests_are_refused_by_their_headers() -> None:
    """The C core would decompress them before the access check."""
    async with (
        serving("127.0.0.1:0", lambda _: None, (), transport="grpcio") as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub: Any = HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="a" * 2000)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(request, compression=grpc.Compression.Gzip)

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

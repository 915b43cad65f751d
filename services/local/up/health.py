"""Waits until a service serves."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inference.grpc_service_pb2 import ServerReadyRequest
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import ExpectedServer, Tls
from services.kit.net import split_address
from services.kit.rpc import dial

_POLL_S = 0.1
_TIMEOUT_S = 2.0


async def until_serving(
    address: str, tls: Tls | None = None, expected: ExpectedServer | None = None
) -> None:
    """Return when grpc.health.v1 at `address` says SERVING; waits for ever."""
    async with dial(address, tls, expected) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind

        async def serves() -> bool:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        await _until(serves)


async def until_answering(
    address: str, tls: Tls | None = None, expected: ExpectedServer | None = None
) -> None:
    """Return when the router at `address` has an instance for every model; waits for ever."""
    async with dial(address, tls, expected) as channel:
        stub = GRPCInferenceServiceStub(channel)

        async def answers() -> bool:
            return (await stub.ServerReady(ServerReadyRequest(), timeout=_TIMEOUT_S)).ready

        await _until(answers)


async def until_listening(address: str) -> None:
    """Return when `address` takes connections; waits for ever."""
    host, port = split_address(address)

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
        except OSError:
            return False
        writer.close()
        return True

    await _until(listens)


async def _until(ready: Callable[[], Awaitable[bool]]) -> None:
    while True:
        with suppress(grpc.aio.AioRpcError):  # not up yet
            if await ready():
                return
        await asyncio.sleep(_POLL_S)

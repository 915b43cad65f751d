"""Waiting until a service says it serves."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inference.grpc_service_pb2 import ServerReadyRequest
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.rpc import dial

_ASK_EVERY_S = 0.1
_TIMEOUT_S = 2.0


async def until_serving(address: str, tls: Tls | None = None) -> None:
    """Return when grpc.health.v1 at `address` says SERVING; waits for ever."""
    async with dial(address, tls) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its published types lag behind
        while True:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not up yet, which is what we wait for
            await asyncio.sleep(_ASK_EVERY_S)


async def until_answering(address: str, tls: Tls | None = None) -> None:
    """Return when the router at `address` has an instance for every model; waits for ever."""
    async with dial(address, tls) as channel:
        stub = GRPCInferenceServiceStub(channel)
        while True:
            try:
                if (await stub.ServerReady(ServerReadyRequest(), timeout=_TIMEOUT_S)).ready:
                    return
            except grpc.aio.AioRpcError:
                pass  # the same
            await asyncio.sleep(_ASK_EVERY_S)

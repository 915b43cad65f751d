"""Talking to a router as its clients and operators do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tests.support.router.router_service import World, infer_request
from tests.support.waiting import until

if TYPE_CHECKING:
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

    Router = GRPCInferenceServiceAsyncStub


def client(world: World) -> Router:
    return GRPCInferenceServiceStub(world.channel)


async def status(world: World) -> router_pb2.ModelStatus:
    response = await RouterServiceStub(world.channel).GetStatus(router_pb2.GetStatusRequest())
    return response.models[0]


async def queued(world: World, depth: int) -> None:
    """Wait until so many requests wait."""

    async def reached() -> bool:
        return (await status(world)).queue_depth == depth

    await until(reached)


async def infer(world: World, timeout_s: float | None = None) -> pb.ModelInferResponse:
    return await client(world).ModelInfer(infer_request(), timeout=timeout_s)

"""The services as a client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Deployment, Endpoint
from services.kit.errors import ServiceError, Unavailable, from_status
from services.kit.rpc import dial
from services.kit.rpc.status import DETAILS_KEY

if TYPE_CHECKING:
    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub
    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub
    from cinquefoil.router.v1.router_pb2_grpc import RouterServiceAsyncStub
    from inference.grpc_service_pb2_grpc import GRPCInferenceServiceAsyncStub

R = TypeVar("R")

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Clients:
    """Stubs of the services of one deployment; it may have no predictor."""

    carbon: CarbonServiceAsyncStub
    planner: PlannerServiceAsyncStub
    router: RouterServiceAsyncStub
    inference: GRPCInferenceServiceAsyncStub
    predictor: PredictorServiceAsyncStub | None


@asynccontextmanager
async def connected(deployment: Deployment) -> AsyncIterator[Clients]:
    """Yield clients of the deployment's services; nothing is dialled before the first call."""
    async with AsyncExitStack() as stack:

        async def channel(endpoint: Endpoint) -> grpc.aio.Channel:
            return await stack.enter_async_context(dial(endpoint.dial, deployment.tls))

        router, asked = await channel(deployment.router), deployment.predictor
        yield Clients(
            carbon=CarbonServiceStub(await channel(deployment.carbon)),
            planner=PlannerServiceStub(await channel(deployment.planner)),
            router=RouterServiceStub(router),
            inference=GRPCInferenceServiceStub(router),
            predictor=None if asked is None else PredictorServiceStub(await channel(asked)),
        )


async def ask(service: str, endpoint: Endpoint, call: Awaitable[R]) -> R:
    """Await a call; say in one sentence what went wrong.

    Args:
        service: Its name, for the sentence.
        endpoint: Where it was dialled.
        call: The call.

    Raises:
        ServiceError: With the service's status and a sentence for a person.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise explain(service, endpoint.dial, error) from error


def explain(service: str, address: str, error: grpc.aio.AioRpcError) -> ServiceError:
    """Return what a failed call means to a person."""
    status = error.code().name
    # Our services attach details to every status: without them nobody of ours answered.
    ours = any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
    if status == "UNAVAILABLE" and not ours:
        return Unavailable(
            f"{service} at {address} does not answer. Is it running? `cinquefoil up` starts the "
            "deployment; --config names another."
        )
    if status == "DEADLINE_EXCEEDED" and not ours:
        return from_status(status, f"{service} at {address} did not answer in time.")
    return from_status(status, f"{service} at {address}: {error.details()} ({status})")

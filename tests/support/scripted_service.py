"""A service without business: the carbon protocol, each method with the behaviour a test sets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import (
    CarbonServiceServicer,
    CarbonServiceStub,
    add_CarbonServiceServicer_to_server,
)
from services.kit.config import Deployment
from services.kit.process.reload import Reloads
from services.kit.process.service import launch
from services.kit.rpc import Serving, dial, serving

if TYPE_CHECKING:
    import grpc

    from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceAsyncStub

NAME = "cinquefoil.carbon.v1.CarbonService"
ADDRESS = "127.0.0.1:0"


class Scripted(CarbonServiceServicer):
    """ListZones and Watch run `script`; what it returns is the zones of the answer."""

    def __init__(self, script: Callable[[Any], Awaitable[list[str]]]) -> None:
        self._script = script

    async def ListZones(self, request: pb.ListZonesRequest, context: Any) -> pb.ListZonesResponse:
        return pb.ListZonesResponse(zones=await self._script(context))

    async def Watch(
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        for zone in await self._script(context):
            yield pb.WatchResponse(intensities=[pb.Intensity(zone=zone)])

    async def GetIntensity(
        self, request: pb.GetIntensityRequest, context: Any
    ) -> pb.GetIntensityResponse:
        return pb.GetIntensityResponse(intensity=pb.Intensity(zone=request.zone))

    async def GetHistory(
        self, request: pb.GetHistoryRequest, context: Any
    ) -> pb.GetHistoryResponse:
        raise NotImplementedError

    async def GetForecast(
        self, request: pb.GetForecastRequest, context: Any
    ) -> pb.GetForecastResponse:
        raise NotImplementedError


@asynccontextmanager
async def scripted(
    script: Callable[[Any], Awaitable[list[str]]], address: str = ADDRESS, **options: Any
) -> AsyncIterator[tuple[CarbonServiceAsyncStub, grpc.aio.Channel, Serving]]:
    """Run a server whose methods run `script`; yield a stub, its channel and the server."""
    servicer = Scripted(script)
    async with (
        serving(
            address,
            lambda server: add_CarbonServiceServicer_to_server(servicer, server),
            (NAME,),
            grace_s=0,
            **options,
        ) as server,
        dial(f"127.0.0.1:{server.port}") as channel,
    ):
        yield CarbonServiceStub(channel), channel, server


async def slow(deployment: Deployment, stop: asyncio.Event, *, reloads: Reloads) -> None:
    """Run the service of a subprocess: prints its port; calls take half a second."""

    async def take(new: Deployment) -> None:
        print("reloaded", *new.models, flush=True)  # noqa: T201 - what the test waits for

    reloads.serve(used=("carbon.*", "models.*"), live=("models.*",), apply=take)

    async def script(_context: Any) -> list[str]:
        print("called", flush=True)  # noqa: T201 - what the test waits for
        await asyncio.sleep(0.5)
        return ["done"]

    async with serving(
        deployment.carbon.listen,
        lambda server: add_CarbonServiceServicer_to_server(Scripted(script), server),
        (NAME,),
    ) as server:
        print(server.port, flush=True)  # noqa: T201 - what the test waits for
        await stop.wait()


if __name__ == "__main__":
    sys.exit(launch("slow", slow, Path(sys.argv[1])))

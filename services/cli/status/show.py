"""Queries every service at once, and shows the status once, or again and again."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from rich.console import Console
from rich.live import Live

from cinquefoil.batch.v1.batch_pb2 import ListRequest
from cinquefoil.carbon.v1.carbon_pb2 import WatchRequest
from cinquefoil.planner.v1.planner_pb2 import GetFleetRequest, ListGridEventsRequest
from cinquefoil.predictor.v1.predictor_pb2 import GetStatisticsRequest
from cinquefoil.regions.v1.regions_pb2 import ListRegionsRequest
from cinquefoil.router.v1.router_pb2 import GetStatusRequest
from services.cli.client import Clients, connected, first
from services.cli.console import output
from services.cli.reasons import newest_plan
from services.cli.status.document import Row, document
from services.cli.status.render import render
from services.kit.config import Deployment
from services.kit.config.loader import load
from services.kit.errors import FailedPrecondition, ServiceError, Unimplemented

T = TypeVar("T")

_CHECK_S = 2.0


async def show(config: Path, *, as_json: bool) -> bool:
    """Print the status once; return whether every service answered."""
    deployment = load(config)
    async with connected(deployment) as clients:
        status = await fetch(clients, deployment)
    output.show(status, lambda: render(status), as_json=as_json)
    return not status.problems


async def follow(config: Path, *, as_json: bool, interval_s: float) -> None:
    """Print the status again and again until cancelled: a live table, or a line of JSON each."""
    console, deployment = Console(), load(config)
    async with connected(deployment) as clients:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                status = await fetch(clients, deployment)
                if as_json:
                    console.out(output.as_line(status), highlight=False)
                else:
                    live.update(render(status), refresh=True)
                await asyncio.sleep(interval_s)


async def fetch(clients: Clients, deployment: Deployment) -> Row:
    """Return the deployment's status; the part of a service that does not answer is empty.

    Args:
        clients: The services.
        deployment: The deployment file that they were found by.
    """
    problems: list[str] = []

    async def attempt(work: Callable[[Clients], Awaitable[T]]) -> T | None:
        try:
            return await work(clients)
        except ServiceError as error:
            problems.append(error.message)
            return None

    async with asyncio.TaskGroup() as tasks:
        planners = tasks.create_task(_planners(clients), name="status.planners")
        zones, planner, router, lengths, batches = (
            tasks.create_task(attempt(work), name=f"status{work.__name__}")
            for work in (_zones, _planner, _router, _lengths, _batches)
        )
    fleet, plan, grid, regions = planner.result() or (None, None, None, None)
    return document(
        zones=zones.result() or (),
        fleet=fleet,
        plan=plan,
        grid=grid,
        regions=regions,
        router=router.result(),
        lengths=lengths.result() or (),
        batches=batches.result() or (),
        planners=planners.result(),
        problems=problems,
        file=deployment.digest,
        speedup=deployment.carbon.replay.speedup,
    )


async def _zones(clients: Clients) -> Any:
    snapshot = await first(clients.carbon.Watch(WatchRequest()))
    return snapshot.intensities if snapshot else ()


async def _planner(clients: Clients) -> Any:
    fleet = await clients.planner.GetFleet(GetFleetRequest())
    return fleet, await newest_plan(clients), await _grid(clients), await _regions(clients)


async def _planners(clients: Clients) -> dict[str, str]:
    """Return what each of several planners does, by address: "leads", "stands by" or "is away"."""

    async def standing(stub: Any) -> str:
        try:
            answer = await stub.Check(HealthCheckRequest(), timeout=_CHECK_S)
        except grpc.aio.AioRpcError:
            return "is away"
        return "leads" if answer.status == HealthCheckResponse.SERVING else "stands by"

    found = await asyncio.gather(*map(standing, clients.planners.values()))
    return dict(zip(clients.planners, found, strict=True))


async def _grid(clients: Clients) -> Any:
    try:
        return await clients.planner.ListGridEvents(ListGridEventsRequest())
    except Unimplemented:
        return None  # a planner from before there were grid events


async def _regions(clients: Clients) -> Any:
    try:
        return await clients.regions.ListRegions(ListRegionsRequest())
    except (FailedPrecondition, Unimplemented):
        return None  # there is one region, or the planner is from before there were several


async def _router(clients: Clients) -> Any:
    return await clients.router.GetStatus(GetStatusRequest())


async def _lengths(clients: Clients) -> Any:
    if clients.predictor is None:
        return ()
    return (await clients.predictor.GetStatistics(GetStatisticsRequest())).models


async def _batches(clients: Clients) -> Any:
    if clients.batch is None:
        return ()
    return (await clients.batch.List(ListRequest(limit=100, all_owners=True))).batches

"""Asks every service at once; one that is away costs only its own part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.predictor.v1 import predictor_pb2
from cinquefoil.router.v1 import router_pb2
from services.cli.client import TIMEOUT_S, Clients, ask, explain
from services.cli.status import convert, view
from services.kit.config import Deployment
from services.kit.errors import NotFound, ServiceError

T = TypeVar("T")


async def fetch(clients: Clients, deployment: Deployment) -> view.Status:
    """Return the deployment's status, with a sentence for each service that does not answer."""
    problems: list[str] = []

    async def attempt(work: Callable[[Clients, Deployment], Awaitable[T]]) -> T | None:
        try:
            return await work(clients, deployment)
        except ServiceError as error:
            problems.append(error.message)
            return None

    async with asyncio.TaskGroup() as tasks:
        zones = tasks.create_task(attempt(_zones), name="status.zones")
        fleet = tasks.create_task(attempt(_fleet), name="status.fleet")
        models = tasks.create_task(attempt(_models), name="status.models")
        lengths = tasks.create_task(attempt(_lengths), name="status.lengths")
    known = fleet.result() or view.Fleet()
    return view.Status(
        zones=zones.result() or (),
        gpus=known.gpus,
        pues=known.pues,
        away=known.away,
        drifts=known.drifts,
        models=models.result() or (),
        lengths=lengths.result() or (),
        plan=known.plan,
        totals=known.totals,
        problems=tuple(sorted(problems)),
    )


async def _zones(clients: Clients, deployment: Deployment) -> tuple[view.Zone, ...]:
    call = clients.carbon.Watch(carbon_pb2.WatchRequest(), timeout=TIMEOUT_S)
    try:
        async for snapshot in call:
            return tuple(convert.zone(value) for value in snapshot.intensities)
    except grpc.aio.AioRpcError as error:
        raise explain("carbon", deployment.carbon.dial, error) from error
    finally:
        call.cancel()
    return ()


async def _fleet(clients: Clients, deployment: Deployment) -> view.Fleet:
    planner = clients.planner
    fleet = await ask(
        "planner",
        deployment.planner,
        planner.GetFleet(planner_pb2.GetFleetRequest(), timeout=TIMEOUT_S),
    )
    try:
        newest = await ask(
            "planner",
            deployment.planner,
            planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=TIMEOUT_S),
        )
        plan = convert.plan(newest.plan)
    except NotFound:
        plan = None
    return view.Fleet(
        gpus=tuple(gpu for node in fleet.nodes for gpu in convert.gpus(node)),
        pues=tuple(convert.effectiveness(node) for node in fleet.nodes if node.pue),
        away=tuple(node.node.name for node in fleet.nodes if not node.connected),
        drifts=tuple(drift for node in fleet.nodes for drift in convert.drifts(node)),
        plan=plan,
        totals=view.Totals(fleet.energy_j, fleet.carbon_gco2e),
    )


async def _models(clients: Clients, deployment: Deployment) -> tuple[view.Model, ...]:
    status = await ask(
        "router",
        deployment.router,
        clients.router.GetStatus(router_pb2.GetStatusRequest(), timeout=TIMEOUT_S),
    )
    return tuple(convert.model(model) for model in status.models)


async def _lengths(clients: Clients, deployment: Deployment) -> tuple[view.Lengths, ...]:
    if clients.predictor is None or deployment.predictor is None:
        return ()
    request = predictor_pb2.GetStatisticsRequest()
    call = clients.predictor.GetStatistics(request, timeout=TIMEOUT_S)
    found = await ask("predictor", deployment.predictor, call)
    return tuple(convert.lengths(model) for model in found.models)

"""Queries every service at once; one that is away costs only its own part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.predictor.v1 import predictor_pb2
from cinquefoil.router.v1 import router_pb2
from services.cli.client import Clients, first
from services.cli.status import convert, view
from services.kit.errors import NotFound, ServiceError

T = TypeVar("T")


async def fetch(clients: Clients) -> view.Status:
    """Return the deployment's status, with a sentence for each service that does not answer."""
    problems: list[str] = []

    async def attempt(work: Callable[[Clients], Awaitable[T]]) -> T | None:
        try:
            return await work(clients)
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


async def _zones(clients: Clients) -> tuple[view.Zone, ...]:
    snapshot = await first(clients.carbon.Watch(carbon_pb2.WatchRequest()))
    return tuple(convert.zone(value) for value in snapshot.intensities) if snapshot else ()


async def _fleet(clients: Clients) -> view.Fleet:
    fleet = await clients.planner.GetFleet(planner_pb2.GetFleetRequest())
    try:
        newest = await clients.planner.GetPlan(planner_pb2.GetPlanRequest())
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


async def _models(clients: Clients) -> tuple[view.Model, ...]:
    status = await clients.router.GetStatus(router_pb2.GetStatusRequest())
    return tuple(convert.model(model) for model in status.models)


async def _lengths(clients: Clients) -> tuple[view.Lengths, ...]:
    if clients.predictor is None:
        return ()
    found = await clients.predictor.GetStatistics(predictor_pb2.GetStatisticsRequest())
    return tuple(convert.lengths(model) for model in found.models)

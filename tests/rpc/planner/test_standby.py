"""A planner that stands by, and takes over with everything that the one before it published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.cli import client as commands
from services.cli.status import show
from services.kit.errors import Unavailable
from services.kit.net import free_port
from services.kit.rpc import dial, serving
from services.planner import app
from services.planner.adapters.store import Store, open_store, rows
from services.planner.app import run
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner, watch
from tests.support.planner.planner_client import connected, fleet_intensity, in_term
from tests.support.waiting import until


async def test_the_planner_that_stands_by_takes_over_routes_agents_and_plans(
    tmp_path: Path, grid: Grid
) -> None:
    """A standby is NOT_SERVING; then it leads in the next term, and no step is repeated."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    leads, waits = (
        deployment(tmp_path, grid.port, listen=each, address=tuple(addresses), standby=True)
        for each in addresses
    )
    agent, stop = Agent("node-a", ("GPU-1", "GPU-2")), asyncio.Event()
    async with dial(addresses[1]) as second:
        async with planner(leads) as stub, living(agent, stub):
            before = await active(stub, 1)
            standby = asyncio.create_task(run(waits, stop), name="standby")
            await second.channel_ready()
            term = REGISTRY.get_sample_value("cinquefoil_planner_term")
            assert await _health(second) == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await PlannerServiceStub(second).GetFleet(planner_pb2.GetFleetRequest())
            async with commands.connected(waits) as clients:
                standings = (await show.fetch(clients, waits)).planners
            taken = len(agent.steps)
        async with dial(addresses) as channel:
            await until(lambda: _serves(channel))
            stub = PlannerServiceStub(channel)
            after = await watch(stub, lambda _: True)
            async with living(agent, stub):
                await connected(stub, "node-a")
                fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
                await active(stub, 1)
                assert REGISTRY.get_sample_value("cinquefoil_planner_leads") == 1
                assert REGISTRY.get_sample_value("cinquefoil_planner_lease_seconds")
        stop.set()
        await standby

    assert term == 1
    assert standings == {addresses[0]: "leads", addresses[1]: "stands by"}
    assert REGISTRY.get_sample_value("cinquefoil_planner_term") == 2
    assert REGISTRY.get_sample_value("cinquefoil_planner_leads") == 0  # it has ended
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert after.plan.version == before.plan.version
    assert after.routing == in_term(2, before.routing)
    assert fleet.leader.term == 2
    assert len(agent.steps) == taken


async def test_a_planner_that_cannot_write_stands_by_until_it_can(
    tmp_path: Path, grid: Grid
) -> None:
    """The standby's server answers health checks all the time, without a restart per attempt."""
    full, listening = [Unavailable("planner.database: database or disk is full")] * 2, 0

    @asynccontextmanager
    async def opened(*arguments: Any, **settings: Any) -> AsyncIterator[Store]:
        if full:
            raise full.pop()
        async with open_store(*arguments, **settings) as store:
            yield store

    def served(*arguments: Any, **settings: Any) -> Any:
        nonlocal listening
        listening += 1
        return serving(*arguments, **settings)

    settings = deployment(tmp_path, grid.port, standby=True)
    with patch.object(app, "open_store", opened), patch.object(app, "serving", served):
        async with planner(settings) as stub:
            fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert fleet.leader.term == 1
    assert listening == 1  # its clients stay connected as it begins to lead


async def test_a_planner_that_waited_leads_by_the_file_as_it_is_now(
    tmp_path: Path, grid: Grid
) -> None:
    """A file that was read again while another planner led counts, not that of the start."""
    settings = deployment(tmp_path, grid.port)
    model = settings.models["digits"]
    slo = model.slo.model_copy(update={"latency_s": 0.3})
    models = {"digits": model.model_copy(update={"slo": slo})}
    changed = settings.model_copy(update={"models": models})
    async with planner(settings, changed) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        seen = await active(stub, 1)

    assert seen.routing.models[0].slo_latency_s == 0.3


async def test_a_planner_that_begins_reads_the_plan_in_force_once(
    tmp_path: Path, grid: Grid
) -> None:
    """A large fleet's plan takes most of the time until routers have their tables again."""
    settings = deployment(tmp_path, grid.port)
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        await active(stub, 1)
    with patch.object(rows, "plan_of", wraps=rows.plan_of) as read:
        async with planner(settings) as stub:
            seen = await watch(stub, lambda _: True)

    assert seen.plan.version == 1
    assert read.call_count == 1


async def test_a_planner_whose_database_was_restored_leads_in_a_term_that_agents_accept(
    tmp_path: Path, grid: Grid
) -> None:
    """Agents have seen a higher term: the planner raises its own before it sends a step."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1",), term=7)
    async with planner(settings) as stub, living(agent, stub):
        seen = await active(stub, 1)

    assert {step.term for step in agent.orders} == {8}
    assert seen.routing.term == 8


@pytest.mark.parametrize("took_over", [True, False])
async def test_a_planner_that_reaches_no_carbon_service_uses_a_free_machine(
    tmp_path: Path, grid: Grid, *, took_over: bool
) -> None:
    """The planner after one that heard an intensity plans with that, another with the assumed."""
    settings = deployment(tmp_path, grid.port, nodes=("node-a", "node-b"))
    if took_over:
        async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
            grid.intensity.publish(321.0)
            await active(stub, 1)
            await until(lambda: fleet_intensity(stub, 321.0))
            await asyncio.sleep(2.5)  # it is written every two seconds
    away = settings.model_copy(
        update={
            "carbon": settings.carbon.model_copy(update={"address": f"127.0.0.1:{free_port()}"})
        }
    )
    async with planner(away) as stub, living(Agent("node-b", ("GPU-2",)), stub):
        seen = await watch(
            stub,
            lambda seen: (
                seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE
                and {each.node for each in seen.plan.segments} == {"node-b"}
            ),
        )
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert seen.plan.inputs.intensity_gco2e_per_kwh == {"Z": 321.0 if took_over else 100.0}
    assert [each.setting for each in fleet.conditions if each.subject == "zone/Z"] == [
        "carbon.address"
    ]


async def _serves(channel: grpc.aio.Channel) -> bool:
    return await _health(channel) == health_pb2.HealthCheckResponse.SERVING


async def _health(channel: grpc.aio.Channel) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2)
    except grpc.aio.AioRpcError:
        return health_pb2.HealthCheckResponse.UNKNOWN
    return int(answer.status)

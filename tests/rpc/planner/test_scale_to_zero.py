"""Models without requests: parked by the planner, and started again for the first request."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cinquefoil.condition.v1 import condition_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit import config
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner, watch
from tests.support.planner.planner_client import Router, connected, plan


def parking(folder: Path, grid: Grid, *, min_interval_s: float = 0.0) -> config.Deployment:
    """A model without a least load, which is parked after a second without requests."""
    found = deployment(folder, grid.port)
    model = found.models["digits"].model_copy(update={"demand_min_rps": 0.0})
    triggers = found.planner.triggers.model_copy(update={"min_interval_s": min_interval_s})
    planner = found.planner.model_copy(update={"triggers": triggers})
    return found.model_copy(update={"models": {"digits": model}, "planner": planner})


def parked(seen: planner_pb2.WatchResponse) -> bool:
    """Return whether the active plan has no segment."""
    return seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE and not seen.plan.segments


async def test_a_model_without_requests_is_parked_and_its_first_request_starts_it(
    tmp_path: Path, grid: Grid
) -> None:
    """The condition says so, and the start waits for no interval."""
    agent = Agent("node-a", ("GPU-1",))
    async with (
        planner(parking(tmp_path, grid)) as stub,
        living(agent, stub),
    ):
        first = await active(stub, 1)
        router = Router(stub)
        router.say(first.routing.revision, arrivals=0)
        seen = await watch(stub, parked)
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
        assert not agent.segments
        router.say(seen.routing.revision, arrivals=1, window_s=0.2)
        woken = await active(stub, seen.plan.version + 1)
        router.call.cancel()

    (condition,) = fleet.conditions
    assert condition.kind == condition_pb2.CONDITION_KIND_PARKED
    assert condition.sentence.startswith("digits: no requests, parked")
    assert condition.setting == "models.digits.demand_min_rps"
    assert "digits has no requests, parked" in seen.plan.reason
    assert seen.plan.inputs.demand_rps == {"digits": 0.0}
    assert [each.spec.model for each in woken.plan.segments] == ["digits"]
    assert woken.plan.inputs.demand_rps["digits"] < 60.0, "not the initial load"


async def test_a_request_wakes_a_parked_model_whatever_the_least_interval_between_plans_is(
    tmp_path: Path, grid: Grid
) -> None:
    """The planner that takes over leaves it parked until then."""
    agent = Agent("node-a", ("GPU-1",))
    async with planner(parking(tmp_path, grid)) as stub, living(agent, stub):
        await active(stub, 1)
        before = await watch(stub, parked)
    async with (
        planner(parking(tmp_path, grid, min_interval_s=3600.0)) as stub,
        living(agent, stub),
    ):
        await connected(stub, "node-a")
        await asyncio.sleep(1.5)
        assert (await plan(stub)).version == before.plan.version
        router = Router(stub)
        router.say(before.routing.revision, arrivals=1, window_s=0.2)
        woken = await active(stub, before.plan.version + 1)
        router.call.cancel()

    assert woken.plan.segments

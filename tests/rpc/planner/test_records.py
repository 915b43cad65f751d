"""Records of plans, of the fleet and of its energy that can be read."""

from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from cinquefoil.planner.v1 import planner_pb2
from tests.support.fake_agent import Agent, Grid, Suite, active, deployment, living, planner
from tests.support.planner.planner_client import Router, fleet_energy, metered, plan, violated
from tests.support.waiting import until


async def test_energy_is_booked_to_the_fleet_and_the_plan_through_a_restart(
    tmp_path: Path, grid: Grid
) -> None:
    """1.8 kJ at 100 g/kWh and PUE 1.2: 60 mg."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        agent.meter(0.0)
        agent.meter(1800.0)
        router = Router(stub)
        router.say(1, arrivals=50)
        await until(lambda: fleet_energy(stub, 1800.0))
    async with planner(settings) as stub, living(agent, stub):
        agent.meter(1800.0)
        await until(lambda: metered(agent, stub, 3600.0))
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    async with planner(settings) as stub:
        outcome = (await plan(stub, 1)).outcome

    assert fleet.carbon_gco2e == pytest.approx(0.12)
    assert outcome.energy_j == 3600.0
    assert outcome.carbon_gco2e == pytest.approx(0.12)
    assert (outcome.requests, dict(outcome.latency_s)) == (50, {"digits": 0.125})
    assert outcome.accuracy == {"digits": 98.0}
    assert outcome.active_s > 0


async def test_the_fleet_lists_nodes_that_are_away(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    async with (
        planner(deployment(tmp_path, grid.port, ("node-a", "node-b"))) as stub,
        living(agent, stub),
    ):
        agent.meter(5.0)
        await active(stub, 1)
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    here, away = fleet.nodes
    assert (here.node.name, here.connected) == ("node-a", True)
    assert here.node.gpus[0].type.max_power_w == 400
    assert [account.gpu_uuid for account in here.energy] == ["GPU-1"]
    assert (away.node.name, away.node.zone, away.connected) == ("node-b", "Z", False)
    assert fleet.intensity_gco2e_per_kwh == {"Z": 100.0}


async def test_plans_are_listed_in_pages_newest_first(suite: Suite) -> None:
    for version, strategy in enumerate(("co2opt", "base", "co2opt"), start=2):
        await active(suite.stub, version - 1)
        await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy=strategy))
    await active(suite.stub, 4)
    versions, token = [], ""
    for _ in range(2):
        request = planner_pb2.ListPlansRequest(page_size=3, page_token=token)
        page = await suite.stub.ListPlans(request)
        versions.append([each.version for each in page.plans])
        token = page.next_page_token

    assert (versions, token) == ([[4, 3, 2], [1]], "")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (planner_pb2.ListPlansRequest(page_size=1001), "page_size"),
        (planner_pb2.ListPlansRequest(page_token="7"), "page_token"),  # noqa: S106 - no password
    ],
)
async def test_a_page_that_cannot_be_is_refused(
    suite: Suite, request_: planner_pb2.ListPlansRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await suite.stub.ListPlans(request_)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == field


async def test_a_plan_that_is_not_there_is_not_found(suite: Suite) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plan(suite.stub, 99)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_objective_that_cannot_be_is_refused_and_nothing_changes(
    suite: Suite, subtests: pytest.Subtests
) -> None:
    await active(suite.stub, 1)
    for request, field in (
        (planner_pb2.SetObjectiveRequest(carbon_weight=1.5), "carbon_weight"),
        (planner_pb2.SetObjectiveRequest(carbon_weight=float("nan")), "carbon_weight"),
        (planner_pb2.SetObjectiveRequest(carbon_weight=0.9, strategy="magic"), "strategy"),
    ):
        with subtests.test(str(request)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await suite.stub.SetObjective(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert violated(caught.value) == field

    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    assert (await active(suite.stub, 2)).plan.inputs.carbon_weight == 0.5


async def test_every_stream_ends_well_when_the_planner_drains(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    async with AsyncExitStack() as peers:
        async with planner(deployment(tmp_path, grid.port)) as stub:
            joined = await peers.enter_async_context(living(agent, stub))
            await active(stub, 1)
            router = Router(stub)
            router.say(1)
            watching = stub.Watch(planner_pb2.WatchRequest())
            await watching.read()

        assert await watching.code() is grpc.StatusCode.OK
        await joined
        assert await router.call == planner_pb2.ReportLoadResponse()

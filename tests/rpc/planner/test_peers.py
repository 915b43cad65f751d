"""Messages that the planner takes from agents and routers, and those it refuses."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from cinquefoil.planner.v1 import planner_pb2
from services.kit import config
from services.planner.core.forecast.load_forecast import MARGIN
from tests.support.fake_agent import Agent, Grid, Suite, active, deployment, living, planner, watch
from tests.support.planner.planner_client import (
    Router,
    fleet_demand,
    fleet_provides,
    known_routers,
    plan,
    refused,
    violated,
)
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("agent", "field"),
    [(Agent("stranger", ()), "node.name"), (Agent("node-a", (), zone="Y"), "node.zone")],
)
async def test_a_node_the_deployment_does_not_know_is_refused(
    tmp_path: Path, grid: Grid, agent: Agent, field: str
) -> None:
    async with planner(deployment(tmp_path, grid.port)) as stub, living(agent, stub) as task:
        error = await refused(task)

    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert violated(error) == field


async def test_a_stream_that_does_not_begin_with_a_node_is_refused(suite: Suite) -> None:
    async def words() -> AsyncIterator[planner_pb2.JoinRequest]:
        yield planner_pb2.JoinRequest()
        await asyncio.Event().wait()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(suite.stub.Join(words())))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "node"


@pytest.mark.parametrize("term", [2**64 - 1, 2**63 - 1, 2**40])
async def test_a_term_in_which_no_planner_can_have_led_is_refused(
    tmp_path: Path, grid: Grid, term: int
) -> None:
    """One agent alone could end the planner with it: its term has to fit into the database."""
    agent = Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, grid.port)) as stub:

        async def words() -> AsyncIterator[planner_pb2.JoinRequest]:
            yield planner_pb2.JoinRequest(node=agent.report(), term=term)
            await asyncio.Event().wait()

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stub.Join(words())))
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
        async with living(agent, stub):
            await active(stub, 1)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "term"
    assert fleet.leader.term < 2**20
    assert not any(each.connected for each in fleet.nodes)


async def test_a_stream_that_turns_into_another_node_is_refused(suite: Suite) -> None:
    await active(suite.stub, 1)
    stranger = Agent("node-b", ())

    async def words() -> AsyncIterator[planner_pb2.JoinRequest]:
        yield planner_pb2.JoinRequest(node=suite.agent.report())
        yield planner_pb2.JoinRequest(node=stranger.report())
        await asyncio.Event().wait()

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in suite.stub.Join(words()):
            pass

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "node.name"


async def test_a_node_that_joins_twice_replaces_its_older_stream(
    tmp_path: Path, grid: Grid
) -> None:
    older, newer = (Agent("node-a", ("GPU-1",)) for _ in range(2))
    async with planner(deployment(tmp_path, grid.port)) as stub, living(older, stub) as task:
        await active(stub, 1)
        newer.slices, newer.segments = older.slices, older.segments
        async with living(newer, stub):
            error = await refused(task)
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            await active(stub, 2)

    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert newer.steps


async def test_segments_are_stopped_only_when_every_router_uses_the_new_routes(
    suite: Suite,
) -> None:
    revision = (await active(suite.stub, 1)).routing.revision
    quick, slow = Router(suite.stub, "quick"), Router(suite.stub, "slow")
    quick.say(2**40)
    slow.say(revision)
    await until(lambda: known_routers(suite.stub) == {"quick", "slow"})
    taken = len(suite.agent.steps)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    change = await watch(suite.stub, lambda seen: seen.routing.revision > revision)
    for _ in range(10):  # the planner and its peers have had their turns, again and again
        await plan(suite.stub)
    held = [step for step in suite.agent.steps[taken:] if step.HasField("stop_segment")]
    slow.say(change.routing.revision)
    await until(lambda: any(step.HasField("stop_segment") for step in suite.agent.steps))
    slow.say(2**40)
    await active(suite.stub, 2)

    assert held == []


async def test_a_router_that_never_acknowledges_does_not_stop_the_rollout(suite: Suite) -> None:
    await active(suite.stub, 1)
    Router(suite.stub).say(0)
    await until(lambda: known_routers(suite.stub) == {"r-1"})
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))

    await active(suite.stub, 2)
    stops = [step for step in suite.agent.steps if step.HasField("stop_segment")]
    assert stops, "the rollout must have had something to wait for"


async def test_reported_load_is_demand_until_its_router_leaves(suite: Suite) -> None:
    await active(suite.stub, 1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    revision = (await active(suite.stub, 2)).routing.revision
    router = Router(suite.stub)
    router.say(revision, arrivals=900, window_s=10.0)
    await until(lambda: fleet_demand(suite.stub, 90.0 * MARGIN))

    router.call.cancel()
    await until(lambda: fleet_demand(suite.stub, 60.0))


async def test_late_requests_make_the_planner_provide_for_more_than_the_load(
    tmp_path: Path, grid: Grid
) -> None:
    """The profile was too kind: planned with it, the same load needs headroom."""
    settings = deployment(tmp_path, grid.port, strategy="co2opt")
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        await active(stub, 1)
        router = Router(stub)
        router.say(1, arrivals=100, window_s=10.0, late=60, variant="small")
        await until(lambda: fleet_provides(stub, 75.0))  # or for more still: it stays late


async def test_a_plan_made_for_late_requests_says_so(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    settings = deployment(
        tmp_path, grid.port, strategy="exact", objective=config.Objective(park_idle_gpus=True)
    )
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        router = Router(stub)
        for _ in range(2):
            router.say(1, arrivals=100, window_s=10.0, late=60)
        seen = await active(stub, 2)

    assert re.match(
        r"sla: 60\.0 % of digits late \(5\.0 % may\); provides for \d+\.\d req/s of digits",
        seen.plan.reason,
    )
    assert seen.plan.inputs.demand_rps["digits"] == pytest.approx(75.0)


async def test_a_report_without_router_is_refused(suite: Suite) -> None:
    router = Router(suite.stub, "")
    router.say(1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.call

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "router_id"


async def test_forged_figures_of_routers_and_agents_do_not_stop_the_planner(suite: Suite) -> None:
    """2^64 - 1 answers and NaN, and the energy of a year in a second: the planner keeps serving."""
    await active(suite.stub, 1)
    forged = planner_pb2.ReportLoadRequest(router_id="r-1", routing_revision=1)
    forged.window.FromSeconds(1)
    load = forged.models.add(model="digits", arrivals=2**64 - 1, answered=2**64 - 1)
    load.latency_s["95"] = float("nan")
    load.answered_by_variant["large"] = 2**64 - 1
    router = Router(suite.stub)
    router._said.put_nowait(forged)
    suite.agent.meter(0.0)
    suite.agent.meter(1.9e9)
    await until(lambda: known_routers(suite.stub) == {"r-1"})
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)
    answer = await suite.stub.GetPlan(planner_pb2.GetPlanRequest(version=1))

    assert answer.plan.outcome.requests <= 10**5
    assert 0 < answer.plan.outcome.energy_j < 2 * 400 * 1.25 * 30


async def test_a_forged_step_result_reads_as_one_line(suite: Suite) -> None:
    """PostgreSQL takes no NUL, and a terminal no escapes: what an agent says is text."""
    suite.agent.refuse = lambda _step: "\x00\x1b[2J" + "x" * 10**5
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    seen = await watch(suite.stub, lambda found: bool(found.plan.failure))

    assert seen.plan.failure.isprintable()
    assert len(seen.plan.failure) < 2000

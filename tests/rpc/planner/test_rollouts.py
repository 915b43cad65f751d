"""The planner's plans and their rollouts, failures among them, between real gRPC peers."""

import asyncio
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit import config
from services.kit.net import free_port
from services.planner.core.cycle import cluster_state
from tests.support.fake_agent import (
    Act,
    Agent,
    Grid,
    Suite,
    active,
    carbon,
    deployment,
    endpoints,
    living,
    planner,
    reconciler,
    watch,
)
from tests.support.planner.planner_client import (
    connected,
    fleet_intensity,
    plan,
    quiet,
    shares,
    variants,
)
from tests.support.waiting import until


async def test_no_plan_is_made_for_a_model_whose_files_are_still_to_come(
    tmp_path: Path, grid: Grid
) -> None:
    """A plan would fail; the first that is made is carried out, with the variant that is there."""
    agent = Agent("node-a", ("GPU-a",), absent=("small", "large"))
    async with planner(deployment(tmp_path, grid.port)) as stub, living(agent, stub):
        await connected(stub, "node-a")
        await quiet(stub, agent)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await plan(stub)
        agent.absent = ("large",)
        agent.say()
        first = (await active(stub, 1)).plan
        agent.absent = ()
        agent.say()
        second = (await active(stub, 2)).plan

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "node-a has no file of large" in str(caught.value.details())
    assert {segment.spec.variant for segment in first.segments} == {"small"}
    assert second.reason == "fleet: a node has the file of large of digits now"
    assert {segment.spec.variant for segment in second.segments} == {"large"}


async def test_the_first_plan_is_made_rolled_out_and_published(suite: Suite) -> None:
    seen = await active(suite.stub, 1)

    assert seen.plan.version == 1
    assert seen.plan.reason == "first plan: 1 node, 2 GPUs"
    assert seen.plan.strategy == "base"
    assert seen.plan.inputs.intensity_gco2e_per_kwh == {"Z": 100.0}
    assert seen.plan.inputs.demand_rps == {"digits": 60.0}
    assert seen.plan.inputs.gpus == {"a100-40gb": 2}
    assert seen.plan.steps == len(suite.agent.steps) > 0
    assert seen.plan.slice_changes == sum(len(found) for found in suite.agent.slices.values())
    assert {each.spec.segment_id for each in seen.plan.segments} == suite.agent.segments.keys()
    assert {each.endpoint for each in seen.routing.models[0].instances} == {
        endpoint
        for segment_id, spec in suite.agent.segments.items()
        for endpoint in endpoints(segment_id, spec.processes)
    }
    assert shares(seen.routing) == pytest.approx(1.0)
    assert seen.routing.plan_version == 1
    assert seen.routing.models[0].instances[0].pue == 1.2


async def test_no_plan_is_made_before_an_intensity_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is awaited; test_standby has what happens then."""
    monkeypatch.setattr(cluster_state, "_GRID_AWAITED_S", 60.0)
    agent = Agent("node-a", ("GPU-1",))
    async with (
        carbon(None) as grid,
        planner(deployment(tmp_path, grid.port)) as stub,
        living(agent, stub),
    ):
        await connected(stub, "node-a")
        await asyncio.sleep(0.5)
        with pytest.raises(grpc.aio.AioRpcError, match="there is no plan yet"):
            await plan(stub)
        grid.intensity.publish(100.0)

        await active(stub, 1)


async def test_the_last_intensity_stands_until_the_carbon_service_is_back(tmp_path: Path) -> None:
    port, agent = free_port(), Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, port)) as stub, living(agent, stub):
        async with carbon(100.0, port):
            await active(stub, 1)
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
        seen = await active(stub, 2)
        async with carbon(150.0, port):
            await until(lambda: fleet_intensity(stub, 150.0))

    assert seen.plan.inputs.intensity_gco2e_per_kwh == {"Z": 100.0}


async def test_a_new_objective_replans_and_supersedes(suite: Suite) -> None:
    await active(suite.stub, 1)
    request = planner_pb2.SetObjectiveRequest(carbon_weight=1.0, strategy="co2opt")
    await suite.stub.SetObjective(request)

    seen = await active(suite.stub, 2)

    assert seen.plan.reason == (
        "objective: strategy base -> co2opt; objective: carbon_weight 0.5 -> 1"
    )
    assert seen.plan.inputs.carbon_weight == 1.0
    assert variants(seen.routing) == {"small"}
    assert (await plan(suite.stub, 1)).state == plan_pb2.PLAN_STATE_SUPERSEDED


async def test_a_change_of_intensity_replans_when_it_changes_the_decision(
    tmp_path: Path, grid: Grid
) -> None:
    """Clean power buys accuracy, dirty power does not; 2 % more is no cause."""
    settings = deployment(
        tmp_path, grid.port, strategy="exact", objective=config.Objective(carbon_weight=0.3)
    )
    grid.intensity.publish(10.0)
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        first = await active(stub, 1)
        grid.intensity.publish(10.2)
        await until(lambda: fleet_intensity(stub, 10.2))
        await quiet(stub)
        grid.intensity.publish(2000.0)
        second = await active(stub, 2)

        assert variants(first.routing) == {"large"}
        assert "small" in variants(second.routing)
        assert second.plan.reason == "carbon: Z 10.0 -> 2000.0 gCO2e/kWh (+19900.0 %)"
        assert second.plan.version == 2
        assert second.plan.prediction.HasField("gap")


async def test_a_decision_equal_to_the_active_plan_is_no_new_plan(suite: Suite) -> None:
    """BASE does not look at the grid."""
    await active(suite.stub, 1)
    suite.grid.intensity.publish(300.0)
    await until(lambda: fleet_intensity(suite.stub, 300.0))
    await quiet(suite.stub, suite.agent)
    suite.grid.intensity.publish(100.0)
    await until(lambda: fleet_intensity(suite.stub, 100.0))
    await quiet(suite.stub, suite.agent)

    assert (await plan(suite.stub)).version == 1


async def test_routes_never_name_what_a_step_is_about_to_stop(suite: Suite) -> None:
    """At each StopSegment the table in force has no instance of that segment, and others serve.

    The planner itself is queried: a stream of tables may be behind the agent's.
    """
    await active(suite.stub, 1)
    board = reconciler(suite.stub)._publisher.board
    tables, unsafe = [board.value.routing], []

    def check(step: Act) -> str:
        tables.append(board.value.routing)
        serving = {each.segment_id for each in tables[-1].models[0].instances}
        if step.WhichOneof("action") == "stop_segment":
            if step.stop_segment.segment_id in serving:
                unsafe.append(f"{step.stop_segment.segment_id} still has routes")
            if not serving:
                unsafe.append("no segment serves")
        return ""

    suite.agent.refuse = check
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)

    assert unsafe == []
    assert any(step.HasField("stop_segment") for step in suite.agent.steps)
    revisions = [table.revision for table in tables]
    assert all(before <= after for before, after in pairwise(revisions))


async def test_a_stopped_segment_gets_its_grace(suite: Suite) -> None:
    await active(suite.stub, 1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)

    stops = [step.stop_segment for step in suite.agent.steps if step.HasField("stop_segment")]
    assert {stop.grace.ToTimedelta().total_seconds() for stop in stops} == {5.0}


async def test_a_failed_step_fails_the_plan_and_is_tried_again(suite: Suite) -> None:
    await active(suite.stub, 1)
    faults = ["GPU is on fire"]

    def fail_once(step: Act) -> str:
        return faults.pop() if step.HasField("start_segment") and faults else ""

    suite.agent.refuse = fail_once
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    seen = await active(suite.stub, 3)

    failed = await plan(suite.stub, 2)
    assert failed.state == plan_pb2.PLAN_STATE_FAILED
    assert "FAILED_PRECONDITION: GPU is on fire" in failed.failure
    assert seen.plan.reason == f"retry: plan 2 failed: {failed.failure}"
    assert {each.spec.segment_id for each in seen.plan.segments} == suite.agent.segments.keys()


async def test_after_a_failure_requests_go_to_what_really_runs(suite: Suite) -> None:
    await active(suite.stub, 1)
    suite.agent.refuse = lambda step: "no" if step.HasField("start_segment") else ""
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))

    seen = await watch(suite.stub, lambda seen: seen.plan.state == plan_pb2.PLAN_STATE_FAILED)
    await until(lambda: suite.agent.late == 0 and suite.agent.said.empty())
    await suite.stub.GetFleet(planner_pb2.GetFleetRequest())  # by then they have arrived
    seen = await watch(suite.stub, lambda _: True)

    routed = {instance.segment_id for instance in seen.routing.models[0].instances}
    assert routed <= suite.agent.segments.keys()


async def test_an_agent_lost_in_mid_rollout_fails_the_plan_and_goes_on_when_back(
    tmp_path: Path, grid: Grid
) -> None:
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(deployment(tmp_path, grid.port)) as stub:
        async with living(agent, stub):
            await active(stub, 1)
            before = agent.step_count
            agent.gate.clear()
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            await until(lambda: agent.step_count > before)
        agent.gate.set()
        failed = await watch(stub, lambda seen: seen.plan.state == plan_pb2.PLAN_STATE_FAILED)
        assert "UNAVAILABLE: the agent of node node-a went away" in failed.plan.failure
        async with living(agent, stub):
            seen = await active(stub, 3)

            assert variants(seen.routing) == {"small"}


async def test_a_node_that_stays_away_is_planned_without(tmp_path: Path, grid: Grid) -> None:
    nodes = ("node-a", "node-b")
    one, other = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with (
        planner(deployment(tmp_path, grid.port, nodes)) as stub,
        living(one, stub),
    ):
        async with living(other, stub):
            first = await active(stub, 1)
            assert {segment.node for segment in first.plan.segments} == set(nodes)
        second = await active(stub, 2)

        assert second.plan.reason.startswith("fleet: node-b 1 x a100-40gb -> away")
        assert {segment.node for segment in second.plan.segments} == {"node-a"}


async def test_an_agent_that_restarts_changes_nothing(tmp_path: Path, grid: Grid) -> None:
    """The workers keep serving meanwhile, so the routes stay, revision and all."""
    agent = Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, grid.port)) as stub:
        async with living(agent, stub):
            before = await active(stub, 1)
        async with living(agent, stub):
            await connected(stub, "node-a")
            await quiet(stub, agent)
            after = await watch(stub, lambda _: True)

    assert after == before


async def test_a_segment_that_vanishes_loses_its_routes_and_is_started_again(
    suite: Suite,
) -> None:
    await active(suite.stub, 1)
    gone = next(iter(suite.agent.segments))
    del suite.agent.segments[gone]
    suite.agent.say()

    seen = await active(suite.stub, 2)

    assert seen.plan.reason.startswith("fleet: large on ")
    assert gone not in {each.segment_id for each in seen.routing.models[0].instances}
    assert {each.spec.segment_id for each in seen.plan.segments} == suite.agent.segments.keys()

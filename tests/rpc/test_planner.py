"""The planner as a service: a real server between real gRPC carbon, agents and routers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import pytest
import yaml
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cinquefoil.gpuagent.v1 import steps_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit import deployment as config
from services.kit.net import free_port
from services.kit.rpc import dial
from tests.rpc.planner_world import Agent, Grid, active, carbon, deployment, living, planner, watch

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

READY = grpc.ChannelConnectivity.READY


@dataclass
class Suite:
    """A planner with all it meets. Attributes: stub, grid, agent (joined)."""

    stub: PlannerServiceAsyncStub
    grid: Grid
    agent: Agent


@pytest.fixture
async def grid() -> AsyncIterator[Grid]:
    async with carbon() as serving:
        yield serving


@pytest.fixture
async def suite(tmp_path: Path, grid: Grid) -> AsyncIterator[Suite]:
    """A planner whose one node of two A100s has joined."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(deployment(tmp_path, grid.port)) as stub, living(agent, stub):
        yield Suite(stub, grid, agent)


def shares(routing: plan_pb2.RoutingTable) -> float:
    return sum(instance.share for instance in routing.models[0].instances)


def variants(routing: plan_pb2.RoutingTable) -> set[str]:
    return {instance.variant for instance in routing.models[0].instances}


async def plan(stub: PlannerServiceAsyncStub, version: int = 0) -> plan_pb2.Plan:
    return (await stub.GetPlan(planner_pb2.GetPlanRequest(version=version))).plan


# ---- plans and rollouts ------------------------------------------------------------------------


async def test_the_first_plan_is_made_rolled_out_and_told(suite: Suite) -> None:
    seen = await active(suite.stub, 1)

    assert seen.plan.version == 1
    assert seen.plan.reason == "first plan: 1 node(s), 2 GPU(s)"
    assert seen.plan.strategy == "base"
    assert seen.plan.inputs.intensity_gco2e_per_kwh == {"Z": 100.0}
    assert seen.plan.inputs.demand_rps == {"digits": 60.0}
    assert seen.plan.inputs.gpus == {"a100-40gb": 2}
    assert seen.plan.steps == len(suite.agent.steps) > 0
    assert seen.plan.slice_changes == sum(len(found) for found in suite.agent.slices.values())
    assert {each.spec.segment_id for each in seen.plan.segments} == suite.agent.segments.keys()
    assert {each.endpoint for each in seen.routing.models[0].instances} == {
        f"{segment_id}:{number}"
        for segment_id, spec in suite.agent.segments.items()
        for number in range(spec.processes)
    }
    assert shares(seen.routing) == pytest.approx(1.0)
    assert seen.routing.plan_version == 1
    assert seen.routing.models[0].instances[0].pue == 1.2


async def test_no_plan_is_made_before_an_intensity_is_known(tmp_path: Path) -> None:
    agent = Agent("node-a", ("GPU-1",))
    async with (
        carbon(None) as grid,
        planner(deployment(tmp_path, grid.port)) as stub,
        living(agent, stub),
    ):
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
            await eventually(lambda: fleet_intensity(stub, 150.0))

    assert seen.plan.inputs.intensity_gco2e_per_kwh == {"Z": 100.0}


async def test_a_new_objective_plans_anew_and_supersedes(suite: Suite) -> None:
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


async def test_a_change_of_intensity_plans_anew_when_it_changes_the_decision(
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
        await asyncio.sleep(0.2)
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
    await asyncio.sleep(0.3)
    suite.grid.intensity.publish(100.0)
    await asyncio.sleep(0.3)

    assert (await plan(suite.stub)).version == 1


async def test_routes_never_name_what_a_step_is_about_to_stop(suite: Suite) -> None:
    """At each StopSegment the table in force has no instance of that segment, and others serve."""
    tables = [(await active(suite.stub, 1)).routing]
    unsafe: list[str] = []

    def check(step: steps_pb2.Step) -> str:
        serving = {each.segment_id for each in tables[-1].models[0].instances}
        if step.WhichOneof("action") == "stop_segment":
            if step.stop_segment.segment_id in serving:
                unsafe.append(f"{step.stop_segment.segment_id} still has routes")
            if not serving:
                unsafe.append("nobody serves")
        return ""

    async def follow() -> None:
        nonlocal tables
        call = suite.stub.Watch(planner_pb2.WatchRequest())
        async for seen in call:
            tables += [seen.routing]

    following = asyncio.create_task(follow())
    suite.agent.refuse = check
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

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


# ---- failures ----------------------------------------------------------------------------------


async def test_a_failed_step_fails_the_plan_and_is_tried_again(suite: Suite) -> None:
    await active(suite.stub, 1)
    faults = ["GPU is on fire"]

    def fail_once(step: steps_pb2.Step) -> str:
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
    await asyncio.sleep(0.1)  # reports after the failure
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
            taken = len(agent.steps)
            agent.gate.clear()
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            await eventually(lambda: len(agent.steps) > taken)
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
    """Its workers served on meanwhile, so the routes stay, revision and all."""
    agent = Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, grid.port)) as stub:
        async with living(agent, stub):
            before = await active(stub, 1)
        async with living(agent, stub):
            await asyncio.sleep(0.3)
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


# ---- restarts ----------------------------------------------------------------------------------


async def test_a_restarted_planner_serves_its_routes_at_once_and_goes_on_counting(
    tmp_path: Path, grid: Grid
) -> None:
    """The table is served before any agent is back; with nothing changed no step is taken."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        before = await active(stub, 1)
    taken = len(agent.steps)
    async with planner(settings) as stub:
        assert (await watch(stub, lambda _: True)).routing == before.routing
        async with living(agent, stub):
            await asyncio.sleep(0.5)
            assert (await watch(stub, lambda _: True)).routing == before.routing
            assert len(agent.steps) == taken
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            after = await active(stub, 2)

    assert after.plan.version == 2
    assert after.routing.revision > before.routing.revision


async def test_a_restart_in_mid_rollout_rolls_out_only_the_difference(
    tmp_path: Path, grid: Grid
) -> None:
    """The objective is the file's again, so what still runs of plan 1 is what is wanted."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with AsyncExitStack() as first_life, planner(settings) as stub:
        await first_life.enter_async_context(living(agent, stub))
        await active(stub, 1)
        taken = len(agent.steps)
        agent.gate.clear()
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
        await eventually(lambda: len(agent.steps) > taken)
    agent.gate.set()
    running = set(agent.segments)
    async with planner(settings) as stub, living(agent, stub):
        seen = await active(stub, 3)

        failed = await plan(stub, 2)
        assert failed.failure == "the planner stopped during its rollout"
        assert seen.plan.reason.startswith("retry: plan 2 failed")
        assert running <= agent.segments.keys()


async def test_kill_nine_loses_nothing_that_was_told(tmp_path: Path, grid: Grid) -> None:
    """A real process, SIGKILL, a new process on the same file."""
    port = free_port()
    settings = deployment(tmp_path, grid.port, listen=f"127.0.0.1:{port}")
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True)))
    agent = Agent("node-a", ("GPU-1", "GPU-2"))

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.planner"),
            env={**os.environ, "CINQUEFOIL_CONFIG": str(file)},
            stderr=asyncio.subprocess.DEVNULL,
        )

    async with dial(f"127.0.0.1:{port}") as channel:
        stub = PlannerServiceStub(channel)
        process = await start()
        await channel.channel_ready()
        async with living(agent, stub):
            before = await active(stub, 1)
            process.kill()
            await process.wait()
        taken = len(agent.steps)
        process = await start()
        await eventually(lambda: channel.get_state(try_to_connect=True) is READY)
        assert (await watch(stub, lambda _: True)) == before
        async with living(agent, stub):
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            after = await active(stub, 2)
        process.terminate()

        assert await process.wait() == 0
    assert (after.plan.version, len(agent.steps) > taken) == (2, True)
    assert after.routing.revision > before.routing.revision


# ---- agents ------------------------------------------------------------------------------------


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
        await asyncio.sleep(10)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(suite.stub.Join(words())))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "node"


async def test_a_stream_that_turns_into_another_node_is_refused(suite: Suite) -> None:
    await active(suite.stub, 1)
    stranger = Agent("node-b", ())

    async def words() -> AsyncIterator[planner_pb2.JoinRequest]:
        yield planner_pb2.JoinRequest(node=suite.agent.report())
        yield planner_pb2.JoinRequest(node=stranger.report())
        await asyncio.sleep(10)

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


# ---- routers -----------------------------------------------------------------------------------


class Router:
    """A router that says what a test tells it to say."""

    def __init__(self, stub: PlannerServiceAsyncStub, router_id: str = "r-1") -> None:
        self._router_id = router_id
        self._said: asyncio.Queue[planner_pb2.ReportLoadRequest] = asyncio.Queue()
        self.call = stub.ReportLoad(self._words())

    def say(self, revision: int, arrivals: int = 0, window_s: float = 1.0) -> None:
        report = planner_pb2.ReportLoadRequest(router_id=self._router_id, routing_revision=revision)
        report.window.FromMilliseconds(int(window_s * 1000))
        report.models.add(model="digits", arrivals=arrivals, answered=arrivals).latency_s.update(
            {"95": 0.125}
        )
        self._said.put_nowait(report)

    async def _words(self) -> AsyncIterator[planner_pb2.ReportLoadRequest]:
        while True:
            yield await self._said.get()


async def test_segments_are_stopped_only_when_every_router_uses_the_new_routes(
    suite: Suite,
) -> None:
    revision = (await active(suite.stub, 1)).routing.revision
    quick, slow = Router(suite.stub, "quick"), Router(suite.stub, "slow")
    quick.say(2**40)
    slow.say(revision)
    await asyncio.sleep(0.1)
    taken = len(suite.agent.steps)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    told = await watch(suite.stub, lambda seen: seen.routing.revision > revision)
    await asyncio.sleep(0.3)
    held = [step for step in suite.agent.steps[taken:] if step.HasField("stop_segment")]
    slow.say(told.routing.revision)
    await eventually(lambda: any(step.HasField("stop_segment") for step in suite.agent.steps))
    slow.say(2**40)
    await active(suite.stub, 2)

    assert held == []


async def test_a_router_that_never_acknowledges_does_not_stop_the_rollout(suite: Suite) -> None:
    await active(suite.stub, 1)
    Router(suite.stub).say(0)
    await asyncio.sleep(0.1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))

    await active(suite.stub, 2)
    stops = [step for step in suite.agent.steps if step.HasField("stop_segment")]
    assert stops, "the rollout must have had something to wait for"


async def test_more_load_than_configured_plans_anew(suite: Suite) -> None:
    await active(suite.stub, 1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    revision = (await active(suite.stub, 2)).routing.revision
    router = Router(suite.stub)
    router.say(revision, arrivals=900, window_s=10.0)
    await eventually(lambda: fleet_demand(suite.stub, 90.0))

    router.call.cancel()
    await eventually(lambda: fleet_demand(suite.stub, 60.0))


async def test_a_report_without_router_is_refused(suite: Suite) -> None:
    router = Router(suite.stub, "")
    router.say(1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await router.call

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "router_id"


# ---- energy and outcome ------------------------------------------------------------------------


async def test_energy_is_booked_to_the_fleet_and_the_plan_through_a_restart(
    tmp_path: Path, grid: Grid
) -> None:
    """3.6 MJ at 100 g/kWh and PUE 1.2: 120 g."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        agent.meter(0.0)
        agent.meter(3.6e6)
        router = Router(stub)
        router.say(1, arrivals=50)
        await eventually(lambda: fleet_energy(stub, 3.6e6))
    async with planner(settings) as stub, living(agent, stub):
        agent.meter(3.6e6)
        await eventually(lambda: metered(agent, stub, 7.2e6))
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    async with planner(settings) as stub:
        outcome = (await plan(stub, 1)).outcome

    assert fleet.carbon_gco2e == pytest.approx(240.0)
    assert outcome.energy_j == 7.2e6
    assert outcome.carbon_gco2e == pytest.approx(240.0)
    assert (outcome.requests, dict(outcome.latency_s)) == (50, {"digits": 0.125})
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


# ---- reading plans -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (planner_pb2.SetObjectiveRequest(carbon_weight=1.5), "carbon_weight"),
        (planner_pb2.SetObjectiveRequest(carbon_weight=float("nan")), "carbon_weight"),
        (planner_pb2.SetObjectiveRequest(carbon_weight=0.9, strategy="magic"), "strategy"),
    ],
)
async def test_an_objective_that_cannot_be_is_refused_and_nothing_changes(
    suite: Suite, request_: planner_pb2.SetObjectiveRequest, field: str
) -> None:
    await active(suite.stub, 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await suite.stub.SetObjective(request_)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == field
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


# ---- helpers -----------------------------------------------------------------------------------


async def eventually(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until `holds()`; fail after 10 s."""
    async with asyncio.timeout(10):
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.02)


async def fleet_demand(stub: PlannerServiceAsyncStub, demand_rps: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return abs(fleet.demand_rps["digits"] - demand_rps) < 1.0


async def fleet_energy(stub: PlannerServiceAsyncStub, energy_j: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return abs(fleet.energy_j - energy_j) < 1.0


async def fleet_intensity(stub: PlannerServiceAsyncStub, intensity: float) -> bool:
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    return fleet.intensity_gco2e_per_kwh == {"Z": intensity}


async def metered(agent: Agent, stub: PlannerServiceAsyncStub, energy_j: float) -> bool:
    """Report the meters again, as agents do twice a second, and look."""
    agent.meter(0.0)
    return await fleet_energy(stub, energy_j)


async def refused(agent: asyncio.Task[None]) -> grpc.aio.AioRpcError:
    """Return the error that ended an agent's stream."""
    with pytest.raises(ExceptionGroup) as caught:
        await agent
    (error,) = caught.value.exceptions
    assert isinstance(error, grpc.aio.AioRpcError)
    return error


def violated(error: grpc.aio.AioRpcError) -> str:
    """Return the field that google.rpc.BadRequest names."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    assert status is not None
    for detail in status.details:
        request = error_details_pb2.BadRequest()
        if detail.Unpack(request):
            return str(request.field_violations[0].field)
    raise AssertionError("no field named")

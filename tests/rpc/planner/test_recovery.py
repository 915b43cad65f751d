"""A planner that stops, or is killed, and starts again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import yaml

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.gpuagent.v1.records import Placement
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit import config
from services.kit.net import free_port
from services.kit.rpc import dial
from tests.support.fake_agent import Act, Agent, Grid, active, deployment, living, planner, watch
from tests.support.full_disk import fill, small_disk
from tests.support.planner.planner_client import connected, in_term, plan, quiet
from tests.support.postgres import Postgres
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

READY = grpc.ChannelConnectivity.READY


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
        assert (await watch(stub, lambda _: True)).routing == in_term(2, before.routing)
        async with living(agent, stub):
            await connected(stub, "node-a")
            await quiet(stub, agent)
            assert (await watch(stub, lambda _: True)).routing == in_term(2, before.routing)
            assert len(agent.steps) == taken
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            after = await active(stub, 2)

    assert after.plan.version == 2
    assert after.routing.revision > before.routing.revision


async def test_a_restart_with_another_objective_or_without_a_variant_plans_again(
    tmp_path: Path, grid: Grid
) -> None:
    """Each is the cause that the plan names; what was removed is stopped, and a dry run answers."""
    first = deployment(tmp_path, grid.port, strategy="exact")
    objective = first.planner.objective.model_copy(update={"max_utilisation": 0.05})
    planning = first.planner.model_copy(update={"objective": objective})
    roomy = first.model_copy(update={"planner": planning})
    digits = first.models["digits"]
    left = {name: each for name, each in digits.variants.items() if name != "large"}
    models = {"digits": digits.model_copy(update={"variants": left})}
    without = first.model_copy(update={"models": models})
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    reasons = []
    for version, settings in enumerate((first, roomy, without), start=1):
        async with planner(settings) as stub, living(agent, stub):
            seen = await active(stub, version)
            await stub.DryRun(planner_pb2.DryRunRequest())
            await stub.Explain(planner_pb2.ExplainRequest(version=1))
            reasons.append(seen.plan.reason)

    assert reasons[1].startswith("settings: planner.objective.max_utilisation 0.7 -> 0.05")
    assert "models.digits.variants.large removed" in reasons[2]
    assert {segment.spec.variant for segment in seen.plan.segments} == {"small"}


def place(spec: inventory_pb2.SegmentSpec) -> Placement:
    return Placement(spec.placement.profile, spec.placement.start)


async def interrupted(settings: config.Deployment, agent: Agent, strategy: str) -> plan_pb2.Plan:
    """Stop a planner half-way through the rollout of plan 2, and return that plan.

    Half of the steps were done; the agent is killed with those that it had begun.
    """
    async with AsyncExitStack() as first_life, planner(settings) as stub:
        await first_life.enter_async_context(living(agent, stub))
        await active(stub, 1)
        taken = len(agent.steps)

        def close_half_way(_step: Act) -> str:
            if len(agent.steps) > taken + 6:
                agent.gate.clear()
            return ""

        agent.refuse = close_half_way
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy=strategy))
        await until(lambda: not agent.gate.is_set())
        begun = await plan(stub, 2)
    agent.refuse = lambda _step: ""
    agent.gate.set()
    return begun


async def test_a_restart_in_mid_rollout_goes_on_with_it(tmp_path: Path, grid: Grid) -> None:
    """The same version becomes active, with the very segments that were announced."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    begun = await interrupted(settings, agent, "co2opt")
    async with planner(settings) as stub, living(agent, stub):
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
        ended = (await active(stub, 2)).plan

    assert begun.state == plan_pb2.PLAN_STATE_ROLLING
    assert (ended.version, ended.segments) == (2, begun.segments)
    assert {each.spec.segment_id for each in ended.segments} == agent.segments.keys()


async def test_nothing_is_left_over_of_a_rollout_that_was_cut(tmp_path: Path, grid: Grid) -> None:
    """No segment or slice that is not the plan's, and no step is done twice."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    await interrupted(settings, agent, "co2opt")
    lasting = settings.model_copy(
        update={"planner": settings.planner.model_copy(update={"strategy": "co2opt"})}
    )
    async with planner(lasting) as stub, living(agent, stub):
        seen = await active(stub, 2)
        await quiet(stub, agent)
        newest = await plan(stub)

    placed = {(s.spec.gpu_uuid, place(s.spec)) for s in seen.plan.segments}
    assert newest.version == 2
    assert {s.spec.segment_id for s in seen.plan.segments} == agent.segments.keys()
    assert {(gpu, each) for gpu, found in agent.slices.items() for each in found} == placed
    started = [s.start_segment.spec.segment_id for s in agent.steps if s.HasField("start_segment")]
    assert len(started) == len(set(started))


async def test_a_rollout_that_the_fleet_cannot_hold_any_more_fails_and_another_plan_is_made(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port)
    await interrupted(settings, Agent("node-a", ("GPU-1", "GPU-2")), "co2opt")
    other = Agent("node-a", ("GPU-3",))
    async with planner(settings) as stub, living(other, stub):
        seen = await active(stub, 3)
        failed = await plan(stub, 2)

    assert failed.state == plan_pb2.PLAN_STATE_FAILED
    assert failed.failure.startswith("its rollout was cut, and cannot go on: GPU GPU-")
    assert seen.plan.reason == f"retry: plan 2 failed: {failed.failure}"
    assert {each.spec.segment_id for each in seen.plan.segments} == other.segments.keys()


async def test_a_planner_on_postgresql_goes_on_where_it_was_stopped(
    tmp_path: Path, grid: Grid, postgres: Postgres
) -> None:
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    settings = deployment(tmp_path, grid.port, database=postgres.database())
    begun = await interrupted(settings, agent, "co2opt")
    async with planner(settings) as stub, living(agent, stub):
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
        ended = (await active(stub, 2)).plan

    assert (ended.version, ended.segments) == (2, begun.segments)
    assert not (tmp_path / "planner.sqlite3").exists()


async def test_a_database_that_breaks_in_between_stops_no_request_and_no_planner(
    tmp_path: Path, grid: Grid, postgres: Postgres
) -> None:
    """The last routes stand; when the database is back, plans are made again."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    settings = deployment(tmp_path, grid.port, database=postgres.database())
    async with planner(settings) as stub, living(agent, stub):
        before = (await active(stub, 1)).routing
        await asyncio.to_thread(postgres.break_lines)
        after = (await watch(stub, lambda _: True)).routing
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
        seen = await active(stub, 2)

    assert after == before
    assert {each.spec.segment_id for each in seen.plan.segments} == agent.segments.keys()


@asynccontextmanager
async def read_only(postgres: Postgres) -> AsyncIterator[None]:
    """Make PostgreSQL refuse to write while the block runs."""
    await asyncio.to_thread(postgres.set_writable, writable=False)
    try:
        yield
    finally:
        await asyncio.to_thread(postgres.set_writable, writable=True)


@asynccontextmanager
async def full(disk: Path) -> AsyncIterator[None]:
    """Fill a disk while the block runs."""
    ballast = await asyncio.to_thread(fill, disk)
    try:
        yield
    finally:
        await asyncio.to_thread(ballast.unlink)


async def unwritable_in_between(
    settings: config.Deployment, unwritable: AbstractAsyncContextManager[None]
) -> None:
    """Order something of a planner whose database cannot write, and again when it can."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        before = (await active(stub, 1)).routing
        async with unwritable:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Pin(planner_pb2.PinRequest(version=1), timeout=5)
            meanwhile = (await watch(stub, lambda _: True)).routing
        await until(lambda: unpinned(stub))
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
        seen = await active(stub, 2)

    assert "planner.database" in (refused.value.details() or "")
    assert meanwhile == before
    assert {each.spec.segment_id for each in seen.plan.segments} == agent.segments.keys()


async def unpinned(stub: PlannerServiceAsyncStub) -> bool:
    try:
        await stub.Unpin(planner_pb2.UnpinRequest())
    except grpc.aio.AioRpcError:
        return False
    return True


async def test_postgresql_that_turns_read_only_refuses_orders_and_loses_nothing(
    tmp_path: Path, grid: Grid, postgres: Postgres
) -> None:
    """After a fail-over to a replica nothing is announced that is not written."""
    settings = deployment(tmp_path, grid.port, database=postgres.database())
    await unwritable_in_between(settings, read_only(postgres))


async def test_a_planner_whose_disk_is_full_refuses_orders_and_goes_on_when_there_is_room(
    tmp_path: Path, grid: Grid
) -> None:
    """The planner does not restart: the same process keeps serving."""
    with small_disk(tmp_path / "disk") as disk:
        settings = deployment(tmp_path, grid.port, database=str(disk / "planner.sqlite3"))
        await unwritable_in_between(settings, full(disk))


async def test_kill_nine_loses_nothing_that_was_published(tmp_path: Path, grid: Grid) -> None:
    """A real process, SIGKILL, a new process on the same file."""
    port = free_port()
    settings = deployment(tmp_path, grid.port, listen=f"127.0.0.1:{port}")
    file = tmp_path / "cinquefoil.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True)))
    agent = Agent("node-a", ("GPU-1", "GPU-2"))

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "planner", "serve"),
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
            await until(lambda: channel.get_state() is not READY)
        taken = len(agent.steps)
        process = await start()
        await until(lambda: channel.get_state(try_to_connect=True) is READY)
        again = await watch(stub, lambda _: True)
        assert (again.plan, again.routing) == (before.plan, in_term(2, before.routing))
        async with living(agent, stub):
            await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
            after = await active(stub, 2)
        process.terminate()

        assert await process.wait() == 0
    assert (after.plan.version, len(agent.steps) > taken) == (2, True)
    assert after.routing.revision > before.routing.revision

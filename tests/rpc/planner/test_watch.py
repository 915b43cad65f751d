"""Watch: a reader that says where it stands misses no plan, whatever happens."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from tests.support.fake_agent import Agent, Grid, Suite, active, deployment, living, planner
from tests.support.planner.planner_client import quiet, violated

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


async def read(
    stub: PlannerServiceAsyncStub, after: int, last: int, pause_s: float = 0.0
) -> list[planner_pb2.WatchResponse]:
    """Return what Watch says until plan `last` is active, read with a pause after each."""
    found = []
    call = stub.Watch(planner_pb2.WatchRequest(after_version=after))
    async with asyncio.timeout(45):
        async for response in call:
            found.append(response)
            if (response.plan.version, response.plan.state) == (last, plan_pb2.PLAN_STATE_ACTIVE):
                call.cancel()
                return found
            await asyncio.sleep(pause_s)
    raise AssertionError("the stream ended first")


def versions_of(responses: list[planner_pb2.WatchResponse]) -> list[int]:
    """Return versions as they were sent, each once for all of a plan's states in a row."""
    versions = [response.plan.version for response in responses if response.HasField("plan")]
    return [
        each for index, each in enumerate(versions) if index == 0 or each != versions[index - 1]
    ]


async def change(stub: PlannerServiceAsyncStub, first: int, last: int) -> None:
    """Cause plans `first`..`last`, one after the other, as fast as they become active."""
    for version in range(first, last + 1):
        strategy = "co2opt" if version % 2 == 0 else "base"
        await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy=strategy))
        await active(stub, version)


async def test_a_reader_that_comes_late_gets_every_plan_in_order(suite: Suite) -> None:
    await active(suite.stub, 1)
    await change(suite.stub, 2, 4)
    from_start = await read(suite.stub, 0, 4)
    from_two = await read(suite.stub, 2, 4)

    assert versions_of(from_start) == [1, 2, 3, 4]
    assert versions_of(from_two) == [3, 4]
    assert [each.plan.state for each in from_start[:3]] == [plan_pb2.PLAN_STATE_SUPERSEDED] * 3


async def test_replayed_plans_come_with_the_present_routes(suite: Suite) -> None:
    await active(suite.stub, 1)
    await change(suite.stub, 2, 3)
    now = (await active(suite.stub, 3)).routing

    assert all(response.routing == now for response in await read(suite.stub, 0, 3))


async def test_readers_fast_and_slow_see_every_plan_while_plans_are_made(suite: Suite) -> None:
    """Plans come faster than the slow readers read: each makes several states of each plan."""
    await active(suite.stub, 1)
    async with asyncio.TaskGroup() as tasks:
        readers = [
            tasks.create_task(read(suite.stub, 0, 8, pause_s)) for pause_s in (0.0, 0.01, 0.05)
        ]
        tasks.create_task(change(suite.stub, 2, 8))

    for responses in (reader.result() for reader in readers):
        assert versions_of(responses) == list(range(1, 9))
        assert all(before != after for before, after in pairwise(responses))


async def test_a_reader_goes_on_over_a_restart_where_it_stopped(tmp_path: Path, grid: Grid) -> None:
    """Plans decided while it was away come first."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        before = await read(stub, 0, 1)
        await change(stub, 2, 3)
    async with planner(settings) as stub, living(agent, stub):
        await change(stub, 4, 4)
        after = await read(stub, 1, 4)

    assert versions_of(before) == [1]
    assert versions_of(after) == [2, 3, 4]


async def test_a_reader_that_has_seen_all_gets_the_present_and_waits(suite: Suite) -> None:
    seen = await active(suite.stub, 1)
    call = suite.stub.Watch(planner_pb2.WatchRequest(after_version=1))
    first = await call.read()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(call.read(), 0.2)

    assert isinstance(first, planner_pb2.WatchResponse)
    assert (first.plan.version, first.routing) == (1, seen.routing)


async def test_a_reader_of_an_empty_planner_gets_the_first_plan(tmp_path: Path, grid: Grid) -> None:
    async with planner(deployment(tmp_path, grid.port)) as stub:
        reading = asyncio.create_task(read(stub, 0, 1))
        await quiet(stub)
        async with living(Agent("node-a", ("GPU-1",)), stub):
            assert versions_of(await reading) == [1]


async def test_a_router_is_sent_routes_and_of_a_plan_only_where_it_stands(suite: Suite) -> None:
    seen = await active(suite.stub, 1)
    first = await anext(aiter(suite.stub.Watch(planner_pb2.WatchRequest(routing_only=True))))

    assert first.routing == seen.routing
    assert first.plan == plan_pb2.Plan(version=1, state=plan_pb2.PLAN_STATE_ACTIVE)


async def test_a_router_cannot_request_earlier_plans(suite: Suite) -> None:
    request = planner_pb2.WatchRequest(routing_only=True, after_version=0)
    with pytest.raises(grpc.aio.AioRpcError, match="after_version: must be unset"):
        await anext(aiter(suite.stub.Watch(request)))


@pytest.mark.parametrize("after", [2, 2**63])
async def test_a_version_that_is_yet_to_come_is_refused(suite: Suite, after: int) -> None:
    await active(suite.stub, 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(suite.stub.Watch(planner_pb2.WatchRequest(after_version=after))))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violated(caught.value) == "after_version"


async def test_a_replay_ends_well_when_the_planner_drains(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, grid.port)) as stub, living(agent, stub):
        await active(stub, 1)
        watching = stub.Watch(planner_pb2.WatchRequest(after_version=0))
        assert await watching.read() is not grpc.aio.EOF

    while await watching.read() is not grpc.aio.EOF:
        pass
    assert await watching.code() is grpc.StatusCode.OK

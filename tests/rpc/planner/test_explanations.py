"""Plans that were made: why, what differs, which one is held, and back to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.planner.v1 import explanation_pb2, plan_pb2, planner_pb2
from tests.support.fake_agent import Agent, Grid, Suite, active, deployment, living, planner
from tests.support.planner.planner_client import quiet, violated
from tests.support.planner.planner_questions import (
    Untouched,
    applied,
    calm,
    dry_run,
    error_of,
    listed,
)
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

WhatIf = planner_pb2.WhatIf
Status = grpc.StatusCode


@pytest.fixture
async def suite(tmp_path: Path, grid: Grid) -> AsyncIterator[Suite]:
    """A planner that re-plans only on request: reports in flight give no reason to."""
    async with calm(tmp_path, grid) as found:
        yield found


# ---- explain and diff --------------------------------------------------------------------------


async def test_a_plan_is_explained_from_what_was_known_when_it_was_made(suite: Suite) -> None:
    """The grid has changed since; the explanation of plan 1 has not."""
    first = (await active(suite.stub, 1)).plan
    before = await explained(suite.stub, 1)
    suite.grid.intensity.publish(900.0)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)
    after = await explained(suite.stub, 1)

    assert after == before
    assert after.version == 1
    assert after.plan.carbon_gco2e_per_h == pytest.approx(first.prediction.carbon_gco2e_per_h)
    assert after.plan.power_w == pytest.approx(first.prediction.power_w)
    assert dict(after.plan.accuracy) == pytest.approx(dict(first.prediction.accuracy))
    assert any("It is BASE" in each for each in after.sentences)


async def explained(stub: PlannerServiceAsyncStub, version: int = 0) -> explanation_pb2.Explanation:
    return (await stub.Explain(planner_pb2.ExplainRequest(version=version))).explanation


async def test_the_newest_plan_is_explained_by_default(suite: Suite) -> None:
    await active(suite.stub, 1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)

    assert (await explained(suite.stub)).version == 2


async def test_an_explanation_survives_a_restart(tmp_path: Path, grid: Grid) -> None:
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        before = await explained(stub, 1)
    async with planner(settings) as stub:
        assert await explained(stub, 1) == before


async def test_a_diff_is_from_the_active_plan_to_the_newest_by_default(suite: Suite) -> None:
    await active(suite.stub, 1)
    suite.agent.refuse = lambda step: "no" if step.HasField("start_segment") else ""
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await until(lambda: is_failed(suite.stub, 2))
    found = (await suite.stub.Diff(planner_pb2.DiffRequest())).diff

    assert found.from_version == 1
    assert found.to_version >= 2
    assert found.started


async def is_failed(stub: PlannerServiceAsyncStub, version: int) -> bool:
    found = await listed(stub)
    failed = plan_pb2.PLAN_STATE_FAILED
    return any(each.version == version and each.state == failed for each in found.plans)


async def test_a_diff_turns_around(suite: Suite) -> None:
    await active(suite.stub, 1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)
    there = (await suite.stub.Diff(planner_pb2.DiffRequest(from_version=1, to_version=2))).diff
    back = (await suite.stub.Diff(planner_pb2.DiffRequest(from_version=2, to_version=1))).diff

    assert list(there.started) == list(back.stopped)
    assert list(there.stopped) == list(back.started)
    assert there.from_outlook == back.to_outlook


# ---- pin and roll back -------------------------------------------------------------------------


async def test_a_pinned_plan_outlasts_a_change_of_the_objective(suite: Suite) -> None:
    await active(suite.stub, 1)
    held = await suite.stub.Pin(planner_pb2.PinRequest())
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await quiet(suite.stub, suite.agent)
    during = await listed(suite.stub)
    await suite.stub.Unpin(planner_pb2.UnpinRequest())
    await active(suite.stub, 2)

    assert (held.version, during.pinned_version) == (1, 1)
    assert [each.version for each in during.plans] == [1]
    assert (await listed(suite.stub)).pinned_version == 0


async def test_only_the_active_plan_can_be_pinned(suite: Suite) -> None:
    await active(suite.stub, 1)
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)
    async with Untouched(suite):
        error = await error_of(suite.stub.Pin(planner_pb2.PinRequest(version=1)))

    assert (error.code(), violated(error)) == (Status.FAILED_PRECONDITION, "version")


async def test_a_rollback_runs_the_old_plan_as_a_new_one_and_holds_it(suite: Suite) -> None:
    first = (await active(suite.stub, 1)).plan
    await suite.stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy="co2opt"))
    await active(suite.stub, 2)
    restored = (await suite.stub.Rollback(planner_pb2.RollbackRequest(version=1))).plan
    await active(suite.stub, 3)
    found = (await suite.stub.Diff(planner_pb2.DiffRequest(from_version=1, to_version=3))).diff

    assert (restored.version, restored.reason) == (3, "rollback to 1")
    assert (found.kept, len(found.started), len(found.stopped)) == (len(first.segments), 0, 0)
    assert (await listed(suite.stub)).pinned_version == 3


async def test_an_applied_plan_can_be_explained_too(suite: Suite) -> None:
    await active(suite.stub, 1)
    await applied(suite, (await dry_run(suite, strategy="exact", carbon_weight=1.0)).proposal_id)
    await active(suite.stub, 2)
    found = await explained(suite.stub, 2)

    assert found.plan.accuracy["digits"] == pytest.approx(90.0)


# ---- what is not there -------------------------------------------------------------------------


Call = Callable[["PlannerServiceAsyncStub"], Awaitable[object]]


async def test_a_version_that_is_not_there_is_not_found(
    suite: Suite, subtests: pytest.Subtests
) -> None:
    stub = suite.stub
    await active(stub, 1)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "explain": lambda: stub.Explain(planner_pb2.ExplainRequest(version=99)),
        "diff from": lambda: stub.Diff(planner_pb2.DiffRequest(from_version=99)),
        "diff to": lambda: stub.Diff(planner_pb2.DiffRequest(to_version=99)),
        "pin": lambda: stub.Pin(planner_pb2.PinRequest(version=99)),
        "rollback": lambda: stub.Rollback(planner_pb2.RollbackRequest(version=99)),
        "last": lambda: stub.Rollback(planner_pb2.RollbackRequest(version=2**64 - 1)),
    }
    for name, call in calls.items():
        with subtests.test(name):
            async with Untouched(suite):
                error = await error_of(call())
            assert error.code() is Status.NOT_FOUND


async def test_a_rollback_must_say_where_to(suite: Suite) -> None:
    await active(suite.stub, 1)
    error = await error_of(suite.stub.Rollback(planner_pb2.RollbackRequest()))

    assert (error.code(), violated(error)) == (Status.INVALID_ARGUMENT, "version")

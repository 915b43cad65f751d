"""Plans one can question: what would you do, why did you, what differs, and do it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.planner.v1 import explanation_pb2, plan_pb2, planner_pb2
from services.kit import deployment as config
from tests.rpc.planner_talk import eventually, violated
from tests.rpc.planner_world import Agent, Grid, Suite, active, deployment, living, planner, watch

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

WhatIf = planner_pb2.WhatIf
Status = grpc.StatusCode


@pytest.fixture
async def suite(tmp_path: Path, grid: Grid) -> AsyncIterator[Suite]:
    """A planner that only plans anew when it is told to: reports in flight are no cause."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    calm = config.Triggers(min_interval_s=60.0, settle_s=0.3)
    settings = deployment(tmp_path, grid.port, triggers=calm)
    async with planner(settings) as stub, living(agent, stub):
        yield Suite(stub, grid, agent)


async def asked(suite: Suite, **what_if: object) -> planner_pb2.DryRunResponse:
    """Ask what would be done under other circumstances."""
    request = planner_pb2.DryRunRequest(what_if=WhatIf(**what_if))  # type: ignore[arg-type]  # fields by name
    return await suite.stub.DryRun(request)


async def error_of(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def applied(suite: Suite, proposal_id: str) -> plan_pb2.Plan:
    return (await suite.stub.Apply(planner_pb2.ApplyRequest(proposal_id=proposal_id))).plan


async def listed(stub: PlannerServiceAsyncStub) -> planner_pb2.ListPlansResponse:
    return await stub.ListPlans(planner_pb2.ListPlansRequest())


class Untouched:
    """Asserts that a block changed nothing: no plan, no step, no pin, no objective."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    async def __aenter__(self) -> None:
        self._before = await self._state()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.05)
        assert await self._state() == self._before

    async def _state(self) -> tuple[list[tuple[int, int]], int, int, dict[str, float]]:
        found = await listed(self._suite.stub)
        fleet = await self._suite.stub.GetFleet(planner_pb2.GetFleetRequest())
        return (
            [(each.version, each.state) for each in found.plans],
            found.pinned_version,
            len(self._suite.agent.steps),
            {**fleet.demand_rps, **fleet.intensity_gco2e_per_kwh},
        )


# ---- dry runs ----------------------------------------------------------------------------------


async def test_a_dry_run_of_the_present_equals_the_active_plan_and_changes_nothing(
    suite: Suite,
) -> None:
    running = (await active(suite.stub, 1)).plan
    async with Untouched(suite):
        answer = await asked(suite)

    assert answer.plan.version == 0
    assert answer.diff.from_version == 1
    assert (len(answer.diff.started), len(answer.diff.stopped)) == (0, 0)
    assert answer.diff.kept == len(running.segments)
    assert answer.proposal_id


async def test_another_strategy_is_proposed_explained_and_compared(suite: Suite) -> None:
    await active(suite.stub, 1)
    async with Untouched(suite):
        answer = await asked(suite, strategy="exact", carbon_weight=1.0)

    assert answer.plan.strategy == "exact"
    assert answer.plan.inputs.carbon_weight == 1.0
    assert {each.spec.variant for each in answer.plan.segments} == {"small"}
    assert answer.explanation.gap == pytest.approx(0.0, abs=1e-6)
    assert answer.explanation.base.outlook.accuracy["digits"] == 98.0
    assert answer.diff.to_outlook.power_w == pytest.approx(answer.plan.prediction.power_w)
    assert len(answer.diff.started) == len(answer.plan.segments) - answer.diff.kept


async def test_other_circumstances_reach_the_plan(suite: Suite) -> None:
    await active(suite.stub, 1)
    async with Untouched(suite):
        answer = await asked(
            suite,
            demand_rps={"digits": 500.0},
            intensity_gco2e_per_kwh={"Z": 7.0},
            accuracy_floor=0.9,
            goals=plan_pb2.Goals(fewest_gpus=1.0),
            without_gpus=["GPU-2"],
            added_gpus=[planner_pb2.AddedGpus(type="a100-40gb", node="node-a", count=3)],
        )

    inputs = answer.plan.inputs
    assert inputs.demand_rps == {"digits": 500.0}
    assert inputs.intensity_gco2e_per_kwh == {"Z": 7.0}
    assert inputs.gpus == {"a100-40gb": 4}
    assert (inputs.accuracy_floor, inputs.goals) == (0.9, plan_pb2.Goals(fewest_gpus=1.0))
    assert "GPU-2" not in {each.spec.gpu_uuid for each in answer.plan.segments}


@pytest.mark.parametrize(
    "what_if",
    [
        WhatIf(demand_rps={"digits": 70.0}),
        WhatIf(intensity_gco2e_per_kwh={"Z": 7.0}),
        WhatIf(without_gpus=["GPU-2"]),
        WhatIf(added_gpus=[planner_pb2.AddedGpus(type="a100-40gb", node="node-a", count=1)]),
    ],
)
async def test_a_plan_for_another_world_cannot_be_applied(suite: Suite, what_if: WhatIf) -> None:
    await active(suite.stub, 1)
    answer = await suite.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if))

    assert answer.plan.segments
    assert answer.proposal_id == ""


@pytest.mark.parametrize(
    ("what_if", "field"),
    [
        (WhatIf(demand_rps={"digits": -1.0}), "what_if.demand_rps"),
        (WhatIf(demand_rps={"digits": math.nan}), "what_if.demand_rps"),
        (WhatIf(demand_rps={"digits": math.inf}), "what_if.demand_rps"),
        (WhatIf(demand_rps={"cats": 1.0}), "what_if.demand_rps"),
        (WhatIf(intensity_gco2e_per_kwh={"Z": -1.0}), "what_if.intensity_gco2e_per_kwh"),
        (WhatIf(intensity_gco2e_per_kwh={"Z": math.nan}), "what_if.intensity_gco2e_per_kwh"),
        (WhatIf(intensity_gco2e_per_kwh={"Y": 1.0}), "what_if.intensity_gco2e_per_kwh"),
        (WhatIf(carbon_weight=1.5), "what_if.carbon_weight"),
        (WhatIf(carbon_weight=math.nan), "what_if.carbon_weight"),
        (WhatIf(accuracy_floor=-0.1), "what_if.accuracy_floor"),
        (WhatIf(goals=plan_pb2.Goals(clover=-1.0)), "what_if.goals.clover"),
        (WhatIf(goals=plan_pb2.Goals()), "what_if.goals"),
        (WhatIf(strategy="magic"), "what_if.strategy"),
        (WhatIf(without_gpus=["GPU-9"]), "what_if.without_gpus"),
        (
            WhatIf(added_gpus=[planner_pb2.AddedGpus(type="tpu", node="node-a", count=1)]),
            "what_if.added_gpus[0].type",
        ),
        (
            WhatIf(added_gpus=[planner_pb2.AddedGpus(type="a100-40gb", node="x", count=1)]),
            "what_if.added_gpus[0].node",
        ),
        (
            WhatIf(added_gpus=[planner_pb2.AddedGpus(type="a100-40gb", node="node-a")]),
            "what_if.added_gpus[0].count",
        ),
        (
            WhatIf(
                added_gpus=[planner_pb2.AddedGpus(type="a100-40gb", node="node-a", count=2**31)]
            ),
            "what_if.added_gpus[0].count",
        ),
    ],
)
async def test_circumstances_that_cannot_be_are_refused_by_field(
    suite: Suite, what_if: WhatIf, field: str
) -> None:
    await active(suite.stub, 1)
    async with Untouched(suite):
        error = await error_of(suite.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if)))

    assert error.code() is Status.INVALID_ARGUMENT
    assert violated(error).startswith(field)
    assert (error.details() or "").startswith(field)


async def test_without_a_gpu_nothing_can_be_decided(suite: Suite) -> None:
    await active(suite.stub, 1)
    async with Untouched(suite):
        error = await error_of(asked(suite, without_gpus=["GPU-1", "GPU-2"]))

    assert error.code() is Status.FAILED_PRECONDITION
    assert "GPU" in (error.details() or "")


async def test_before_any_agent_has_joined_nothing_can_be_decided(
    tmp_path: Path, grid: Grid
) -> None:
    async with planner(deployment(tmp_path, grid.port)) as stub:
        error = await error_of(stub.DryRun(planner_pb2.DryRunRequest()))

    assert error.code() is Status.FAILED_PRECONDITION


async def test_overload_is_proposed_as_a_degraded_plan(suite: Suite) -> None:
    await active(suite.stub, 1)
    answer = await asked(suite, strategy="exact", demand_rps={"digits": 1e6})

    assert "digits" in answer.plan.degraded
    assert answer.explanation.plan.unserved_rps["digits"] > 0
    assert {"fleet", "capacity"} <= {each.constraint for each in answer.explanation.bindings}


# ---- apply -------------------------------------------------------------------------------------


async def test_a_proposal_is_carried_out_as_it_was_proposed(suite: Suite) -> None:
    await active(suite.stub, 1)
    answer = await asked(suite, strategy="co2opt", carbon_weight=1.0)
    told = await applied(suite, answer.proposal_id)
    seen = (await active(suite.stub, 2)).plan

    assert told.version == 2
    assert [each.spec for each in seen.segments] == [each.spec for each in answer.plan.segments]
    assert {each.spec.segment_id for each in seen.segments} == suite.agent.segments.keys()
    assert seen.inputs.carbon_weight == 1.0


async def test_a_proposal_is_refused_once_what_runs_is_another(suite: Suite) -> None:
    await active(suite.stub, 1)
    stale = await asked(suite, strategy="co2opt")
    await applied(suite, (await asked(suite, strategy="exact", carbon_weight=1.0)).proposal_id)
    await active(suite.stub, 2)
    async with Untouched(suite):
        error = await error_of(applied(suite, stale.proposal_id))

    assert error.code() is Status.FAILED_PRECONDITION
    assert "plan 2 took the place of plan 1 since the dry run" in (error.details() or "")


async def test_a_proposal_is_refused_once_a_segment_is_gone(suite: Suite) -> None:
    await active(suite.stub, 1)
    stale = await asked(suite, strategy="co2opt")
    gone, _ = suite.agent.segments.popitem()
    suite.agent.say()
    await watch(suite.stub, lambda seen: gone not in routed(seen))
    async with Untouched(suite):
        error = await error_of(applied(suite, stale.proposal_id))

    assert (error.code(), violated(error)) == (Status.FAILED_PRECONDITION, "proposal_id")
    assert "what runs has changed since the dry run" in (error.details() or "")


def routed(seen: planner_pb2.WatchResponse) -> set[str]:
    return {each.segment_id for each in seen.routing.models[0].instances}


@pytest.mark.parametrize("proposal_id", ["", "made-up"])
async def test_a_proposal_that_was_never_made_is_not_found(suite: Suite, proposal_id: str) -> None:
    await active(suite.stub, 1)
    async with Untouched(suite):
        error = await error_of(applied(suite, proposal_id))

    assert (error.code(), violated(error)) == (Status.NOT_FOUND, "proposal_id")


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
    await eventually(lambda: is_failed(suite.stub, 2))
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
    await asyncio.sleep(0.3)
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
    told = (await suite.stub.Rollback(planner_pb2.RollbackRequest(version=1))).plan
    await active(suite.stub, 3)
    found = (await suite.stub.Diff(planner_pb2.DiffRequest(from_version=1, to_version=3))).diff

    assert (told.version, told.reason) == (3, "rollback to 1")
    assert (found.kept, len(found.started), len(found.stopped)) == (len(first.segments), 0, 0)
    assert (await listed(suite.stub)).pinned_version == 3


async def test_an_applied_plan_can_be_explained_too(suite: Suite) -> None:
    await active(suite.stub, 1)
    await applied(suite, (await asked(suite, strategy="exact", carbon_weight=1.0)).proposal_id)
    await active(suite.stub, 2)
    found = await explained(suite.stub, 2)

    assert found.plan.accuracy["digits"] == pytest.approx(90.0)


# ---- what is not there -------------------------------------------------------------------------


Call = Callable[["PlannerServiceAsyncStub"], Awaitable[object]]


@pytest.mark.parametrize(
    "call",
    [
        lambda stub: stub.Explain(planner_pb2.ExplainRequest(version=99)),
        lambda stub: stub.Diff(planner_pb2.DiffRequest(from_version=99)),
        lambda stub: stub.Diff(planner_pb2.DiffRequest(to_version=99)),
        lambda stub: stub.Pin(planner_pb2.PinRequest(version=99)),
        lambda stub: stub.Rollback(planner_pb2.RollbackRequest(version=99)),
        lambda stub: stub.Rollback(planner_pb2.RollbackRequest(version=2**64 - 1)),
    ],
)
async def test_a_version_that_is_not_there_is_not_found(suite: Suite, call: Call) -> None:
    await active(suite.stub, 1)
    async with Untouched(suite):
        error = await error_of(call(suite.stub))

    assert error.code() is Status.NOT_FOUND


async def test_a_rollback_must_say_where_to(suite: Suite) -> None:
    await active(suite.stub, 1)
    error = await error_of(suite.stub.Rollback(planner_pb2.RollbackRequest()))

    assert (error.code(), violated(error)) == (Status.INVALID_ARGUMENT, "version")

"""Plans one can question: what would you do, why did you, what differs, and do it."""

import math
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from tests.support.fake_agent import Grid, Suite, active, carbon, deployment, planner
from tests.support.planner.planner_client import violated
from tests.support.planner.planner_questions import Untouched, applied, calm, dry_run, error_of
from tests.support.waiting import until

WhatIf = planner_pb2.WhatIf
Status = grpc.StatusCode
SHARED = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Suite]:
    """A planner with an active plan, for all questions that change nothing."""
    async with carbon() as grid, calm(tmp_path_factory.mktemp("standing"), grid) as found:
        await active(found.stub, 1)
        yield found


@pytest.fixture
async def suite(tmp_path: Path, grid: Grid) -> AsyncIterator[Suite]:
    """A planner that re-plans only on request: reports in flight give no reason to."""
    async with calm(tmp_path, grid) as found:
        yield found


# ---- dry runs ----------------------------------------------------------------------------------


@SHARED
async def test_a_dry_run_of_the_present_equals_the_active_plan_and_changes_nothing(
    standing: Suite,
) -> None:
    running = (await active(standing.stub, 1)).plan
    async with Untouched(standing):
        answer = await dry_run(standing)

    assert answer.plan.version == 0
    assert answer.diff.from_version == 1
    assert (len(answer.diff.started), len(answer.diff.stopped)) == (0, 0)
    assert answer.diff.kept == len(running.segments)
    assert answer.proposal_id


@SHARED
async def test_another_strategy_is_proposed_explained_and_compared(standing: Suite) -> None:
    async with Untouched(standing):
        answer = await dry_run(standing, strategy="exact", carbon_weight=1.0)

    assert answer.plan.strategy == "exact"
    assert answer.plan.inputs.carbon_weight == 1.0
    assert {each.spec.variant for each in answer.plan.segments} == {"small"}
    assert answer.explanation.gap == pytest.approx(0.0, abs=1e-6)
    assert answer.explanation.base.outlook.accuracy["digits"] == 98.0
    assert answer.diff.to_outlook.power_w == pytest.approx(answer.plan.prediction.power_w)
    assert len(answer.diff.started) == len(answer.plan.segments) - answer.diff.kept


@SHARED
async def test_a_brief_answer_is_the_same_plan_without_what_takes_further_solves(
    standing: Suite,
) -> None:
    whole = await dry_run(standing, carbon_weight=1.0)
    request = planner_pb2.DryRunRequest(what_if=WhatIf(carbon_weight=1.0), brief=True)
    async with Untouched(standing):
        brief = await standing.stub.DryRun(request)

    assert brief.explanation.plan == whole.explanation.plan
    assert brief.proposal_id
    assert not brief.explanation.HasField("runner_up")
    assert not brief.explanation.sentences


@SHARED
async def test_a_sweep_gives_each_weights_promise_in_their_order(standing: Suite) -> None:
    """The more carbon weighs, the less is emitted."""
    weights = [0.0, 0.5, 1.0]
    request = planner_pb2.SweepRequest(what_if=WhatIf(strategy="exact"), carbon_weights=weights)
    async with Untouched(standing):
        answers = [each async for each in standing.stub.Sweep(request)]

    assert [each.carbon_weight for each in answers] == weights
    emitted = [each.outlook.carbon_gco2e_per_h for each in answers]
    assert emitted == sorted(emitted, reverse=True)
    assert emitted[0] > emitted[-1]


@pytest.mark.parametrize("weights", [[], [0.5] * 33, [1.5]])
@SHARED
async def test_a_sweep_of_weights_that_cannot_be_is_refused(
    standing: Suite, weights: list[float]
) -> None:
    sweep = standing.stub.Sweep(planner_pb2.SweepRequest(carbon_weights=weights))
    error = await error_of(anext(aiter(sweep)))

    assert error.code() is Status.INVALID_ARGUMENT
    assert "carbon_weight" in (error.details() or "")


@SHARED
async def test_other_circumstances_reach_the_plan(standing: Suite) -> None:
    async with Untouched(standing):
        answer = await dry_run(
            standing,
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
@SHARED
async def test_a_plan_for_another_cluster_cannot_be_applied(
    standing: Suite, what_if: WhatIf
) -> None:
    answer = await standing.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if))

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
@SHARED
async def test_circumstances_that_cannot_be_are_refused_by_field(
    standing: Suite, what_if: WhatIf, field: str
) -> None:
    async with Untouched(standing):
        error = await error_of(standing.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if)))

    assert error.code() is Status.INVALID_ARGUMENT
    assert violated(error).startswith(field)
    assert (error.details() or "").startswith(field)


@SHARED
async def test_without_a_gpu_nothing_can_be_decided(standing: Suite) -> None:
    async with Untouched(standing):
        error = await error_of(dry_run(standing, without_gpus=["GPU-1", "GPU-2"]))

    assert error.code() is Status.FAILED_PRECONDITION
    assert "--add-gpus" in (error.details() or "")


async def test_before_any_agent_has_joined_nothing_can_be_decided(
    tmp_path: Path, grid: Grid
) -> None:
    async with planner(deployment(tmp_path, grid.port)) as stub:
        error = await error_of(stub.DryRun(planner_pb2.DryRunRequest()))

    assert error.code() is Status.FAILED_PRECONDITION


@SHARED
async def test_overload_is_proposed_as_a_degraded_plan(standing: Suite) -> None:
    answer = await dry_run(standing, strategy="exact", demand_rps={"digits": 1e6})

    assert "digits" in answer.plan.degraded
    assert answer.explanation.plan.unserved_rps["digits"] > 0
    assert {"fleet", "capacity"} <= {each.constraint for each in answer.explanation.bindings}


# ---- apply -------------------------------------------------------------------------------------


async def test_a_proposal_is_carried_out_as_it_was_proposed(suite: Suite) -> None:
    await active(suite.stub, 1)
    answer = await dry_run(suite, strategy="co2opt", carbon_weight=1.0)
    answer_ = await applied(suite, answer.proposal_id)
    seen = (await active(suite.stub, 2)).plan

    assert answer_.version == 2
    assert [each.spec for each in seen.segments] == [each.spec for each in answer.plan.segments]
    assert {each.spec.segment_id for each in seen.segments} == suite.agent.segments.keys()
    assert seen.inputs.carbon_weight == 1.0


async def test_a_proposal_is_refused_once_what_runs_is_another(suite: Suite) -> None:
    await active(suite.stub, 1)
    stale = await dry_run(suite, strategy="co2opt")
    await applied(suite, (await dry_run(suite, strategy="exact", carbon_weight=1.0)).proposal_id)
    await active(suite.stub, 2)
    async with Untouched(suite):
        error = await error_of(applied(suite, stale.proposal_id))

    assert error.code() is Status.FAILED_PRECONDITION
    assert "plan 2 took the place of plan 1 since the dry run" in (error.details() or "")


async def test_a_proposal_is_refused_once_another_segment_runs(suite: Suite) -> None:
    """Not one that is gone: that loss would lead to another plan at once."""
    await active(suite.stub, 1)
    stale = await dry_run(suite, strategy="co2opt")
    another = inventory_pb2.SegmentSpec.FromString(
        next(iter(suite.agent.segments.values())).SerializeToString()
    )
    another.segment_id = "another"
    suite.agent.segments["another"] = another
    suite.agent.say()

    async def reported() -> bool:
        fleet = await suite.stub.GetFleet(planner_pb2.GetFleetRequest())
        segments = [each.spec.segment_id for node in fleet.nodes for each in node.node.segments]
        return "another" in segments

    await until(reported)
    async with Untouched(suite):
        error = await error_of(applied(suite, stale.proposal_id))

    assert (error.code(), violated(error)) == (Status.FAILED_PRECONDITION, "proposal_id")
    assert "what runs has changed since the dry run" in (error.details() or "")


@pytest.mark.parametrize("proposal_id", ["", "made-up"])
@SHARED
async def test_a_proposal_that_was_never_made_is_not_found(
    standing: Suite, proposal_id: str
) -> None:
    async with Untouched(standing):
        error = await error_of(applied(standing, proposal_id))

    assert (error.code(), violated(error)) == (Status.NOT_FOUND, "proposal_id")

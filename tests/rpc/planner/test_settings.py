"""Settings that change while the planner runs: by order of operators, and by reload of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.json_format import Parse

from cinquefoil.condition.v1.records import ConditionKind
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from tests.support.fake_agent import (
    Agent,
    Grid,
    Suite,
    active,
    deployment,
    living,
    planner,
    reload,
    watch,
)
from tests.support.planner.planner_client import connected, plan, quiet, refused, shares, variants
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


async def change(
    stub: PlannerServiceAsyncStub,
    values: dict[str, str] | None = None,
    *,
    reset: tuple[str, ...] = (),
    dry_run: bool = False,
) -> planner_pb2.ChangeSettingsResponse:
    """Change settings to values of JSON."""
    request = planner_pb2.ChangeSettingsRequest(reset=reset, dry_run=dry_run)
    for path, value in (values or {}).items():
        Parse(value, request.values[path])
    return await stub.ChangeSettings(request)


async def listed(stub: PlannerServiceAsyncStub) -> dict[str, Any]:
    found = await stub.ListChangedSettings(planner_pb2.ListChangedSettingsRequest())
    return {each.path: each.value.number_value for each in found.settings}


def slo_s(seen: planner_pb2.WatchResponse) -> float:
    return seen.routing.models[0].slo_latency_s


async def test_a_changed_slo_is_planned_for_routed_by_and_kept_over_a_restart(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        answer = await change(stub, {"models.digits.slo.latency_s": "0.3"})
        seen = await watch(stub, lambda seen: slo_s(seen) == 0.3)
    async with planner(settings) as stub, living(agent, stub):
        await connected(stub, "node-a")
        restarted = await watch(stub, lambda seen: seen.routing.revision > 0)
        kept = await listed(stub)
        await change(stub, reset=("models.digits",))
        await watch(stub, lambda seen: slo_s(seen) == 0.2)

        assert list(answer.changed) == ["models.digits.slo.latency_s"]
        assert slo_s(seen) == slo_s(restarted) == 0.3
        assert kept == {"models.digits.slo.latency_s": 0.3}
        assert await listed(stub) == {}


async def test_a_changed_objective_is_a_cause_that_the_plan_names(suite: Suite) -> None:
    await active(suite.stub, 1)
    await change(suite.stub, {"planner.strategy": '"co2opt"'})
    seen = await active(suite.stub, 2)

    assert seen.plan.reason == "objective: strategy base -> co2opt"
    assert variants(seen.routing) == {"small"}


async def test_an_objective_that_no_variant_meets_is_a_condition_as_long_as_it_is_set(
    suite: Suite,
) -> None:
    """Also where the decision changes nothing: what runs stays, and the active plan kept it."""
    await active(suite.stub, 1)

    def kinds(seen: planner_pb2.WatchResponse) -> set[int]:
        return {each.kind for each in seen.conditions}

    unmet = {"models.digits.slo.latency_s": "0.0001", "planner.strategy": '"exact"'}
    await change(suite.stub, unmet)
    unmet_by = ConditionKind.NO_VARIANT_MEETS_SLO
    seen = await watch(suite.stub, lambda seen: unmet_by in kinds(seen))
    assert seen.plan.version == 1
    await change(suite.stub, reset=("models.digits",))
    await watch(suite.stub, lambda seen: not kinds(seen))


async def test_a_dry_run_shows_the_plan_that_would_follow_and_changes_nothing(
    suite: Suite,
) -> None:
    first = (await active(suite.stub, 1)).plan
    answer = await change(suite.stub, {"models.digits.variants.large": "null"}, dry_run=True)
    await quiet(suite.stub, suite.agent)

    assert list(answer.changed) == ["models.digits.variants.large"]
    assert {each.spec.variant for each in answer.outcome.plan.segments} == {"small"}
    assert answer.outcome.proposal_id == ""
    assert await plan(suite.stub) == first
    assert await listed(suite.stub) == {}


async def test_a_dry_run_shows_the_plan_with_a_model_that_the_file_lacks(suite: Suite) -> None:
    """The models that start, and their objectives; without dry_run only the file brings a model."""
    await active(suite.stub, 1)
    variants = {
        "only": {
            "file": "/a.onnx",
            "accuracy": 90,
            "profile": {"kind": "analytic", "gmacs_per_item": 0.5},
        }
    }
    section = {"slo": {"latency_s": 0.2}, "demand_rps": 5, "variants": variants}
    added = {"models.cats": json.dumps(section)}
    answer = await change(suite.stub, added, dry_run=True)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await change(suite.stub, added)

    assert list(answer.changed) == ["models.cats"]
    assert {each.spec.model for each in answer.outcome.plan.segments} == {"digits", "cats"}
    assert "cats" in {each.spec.model for each in answer.outcome.diff.started}
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert await listed(suite.stub) == {}


async def test_a_variant_is_removed_without_losing_capacity_where_there_is_room(
    tmp_path: Path, grid: Grid
) -> None:
    """The rollout knows what the removed variant serves, and replaces it GPU by GPU."""
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        await change(stub, {"models.digits.variants.large": "null"})
        call = stub.Watch(planner_pb2.WatchRequest())
        async for seen in call:
            assert shares(seen.routing) == pytest.approx(1.0)
            if seen.plan.version > 1 and seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE:
                break
        call.cancel()

    assert variants(seen.routing) == {"small"}


async def test_a_removed_variant_serves_until_the_rollout_stops_it(suite: Suite) -> None:
    """The only GPU is full: its segment must stop before another can start."""
    await active(suite.stub, 1)
    await change(suite.stub, {"models.digits.variants.large": "null"})
    call = suite.stub.Watch(planner_pb2.WatchRequest())
    async for seen in call:
        if seen.plan.version == 1:
            assert variants(seen.routing) == {"large"}
        if seen.plan.version > 1 and seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE:
            break
    call.cancel()

    assert variants(seen.routing) == {"small"}


@pytest.mark.parametrize(
    ("path", "value"),
    [("models.digits.slo.latency_s", "-1"), ("planner.listen", '"0.0.0.0:1"')],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    suite: Suite, path: str, value: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await change(suite.stub, {path: value})

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (caught.value.details() or "").startswith(path)
    assert await listed(suite.stub) == {}


# ---- reload ------------------------------------------------------------------------------------


async def test_reload_takes_models_over_and_keeps_what_operators_changed(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port)
    digits = settings.models["digits"]
    more = settings.model_copy(update={"models": {"digits": digits, "letters": digits}})
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        await change(stub, {"models.digits.slo.latency_s": "0.3"})
        await reload(stub, more)
        seen = await watch(
            stub,
            lambda seen: (
                seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE
                and {each.spec.model for each in seen.plan.segments} == {"digits", "letters"}
            ),
        )

    assert [each.slo_latency_s for each in seen.routing.models] == [0.3, 0.2]


async def test_a_node_that_is_removed_is_left_without_losing_capacity(
    tmp_path: Path, grid: Grid
) -> None:
    one, other = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    both = deployment(tmp_path, grid.port, ("node-a", "node-b"))
    async with planner(both) as stub, living(one, stub), living(other, stub) as task:
        await active(stub, 1)
        await reload(stub, deployment(tmp_path, grid.port, ("node-a",)))
        seen = await watch(
            stub,
            lambda seen: (
                seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE
                and {each.node for each in seen.plan.segments} == {"node-a"}
            ),
        )
        await until(lambda: not other.segments)
        await quiet(stub, one, other)
        other.say()
        error = await refused(task)

    assert seen.plan.reason.startswith("fleet: node-b 1 x a100-40gb -> away")
    assert "not in the deployment file" in (error.details() or "")


async def test_a_file_with_a_zone_that_is_not_followed_changes_nothing(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port)
    zones = {**settings.carbon.zones, "Y": settings.carbon.zones["Z"]}
    carbon = settings.carbon.model_copy(update={"zones": zones})
    moved = settings.nodes["node-a"].model_copy(update={"zone": "Y"})
    wrong = settings.model_copy(update={"carbon": carbon, "nodes": {"node-a": moved}})
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        await active(stub, 1)
        with pytest.raises(Exception, match="restart it to follow this zone"):
            await reload(stub, wrong)
        fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())

    assert fleet.nodes[0].connected

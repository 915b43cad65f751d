"""Plans that operators order: held, taken back, applied; and what the planner still does itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit.conditions import HOLDS
from services.kit.config import Deployment, MaintenanceWindow
from services.kit.net import free_port
from services.kit.rpc import dial
from services.kit.rpc.condition_messages import conditions_from
from tests.support.certificates import issued
from tests.support.fake_agent import (
    Act,
    Agent,
    Grid,
    Suite,
    active,
    carbon,
    deployment,
    living,
    planner,
    reload,
    watch,
)
from tests.support.planner.planner_client import (
    abandoned,
    connected,
    fleet_intensity,
    ordered,
    plan,
    quiet,
    variants,
)
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub


async def aim(stub: PlannerServiceAsyncStub, strategy: str) -> None:
    await stub.SetObjective(planner_pb2.SetObjectiveRequest(strategy=strategy))


async def pinned(stub: PlannerServiceAsyncStub) -> int:
    return int((await stub.ListPlans(planner_pb2.ListPlansRequest())).pinned_version)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return status and message of a call that must be refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def layout(plan: plan_pb2.Plan) -> set[tuple[str, str, int, str]]:
    """The segments of a plan by place, without their ids."""
    return {
        (
            each.spec.gpu_uuid,
            each.spec.placement.profile,
            each.spec.placement.start,
            each.spec.variant,
        )
        for each in plan.segments
    }


# ---- holding -----------------------------------------------------------------------------------


async def test_a_pinned_plan_stays_whatever_else_changes_until_it_is_unpinned(
    suite: Suite,
) -> None:
    await active(suite.stub, 1)
    answer = await suite.stub.Pin(planner_pb2.PinRequest())
    await aim(suite.stub, "co2opt")
    suite.grid.intensity.publish(900.0)
    await until(lambda: fleet_intensity(suite.stub, 900.0))
    await quiet(suite.stub, suite.agent)
    held = await plan(suite.stub)
    await suite.stub.Unpin(planner_pb2.UnpinRequest())
    seen = await active(suite.stub, 2)

    assert (answer.version, held.version) == (1, 1)
    assert seen.plan.reason.startswith("objective: strategy base -> co2opt")
    assert await pinned(suite.stub) == 0


async def test_a_pin_survives_a_restart(tmp_path: Path, grid: Grid) -> None:
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        await stub.Pin(planner_pb2.PinRequest(version=1))
    async with planner(settings) as stub, living(agent, stub):
        assert await pinned(stub) == 1
        await aim(stub, "co2opt")
        await connected(stub, "node-a")
        await quiet(stub, agent)

        assert (await plan(stub)).version == 1


async def test_a_pinned_plan_is_held_again_when_a_segment_of_it_vanishes(suite: Suite) -> None:
    first = (await active(suite.stub, 1)).plan
    await suite.stub.Pin(planner_pb2.PinRequest())
    await aim(suite.stub, "co2opt")
    del suite.agent.segments[next(iter(suite.agent.segments))]
    suite.agent.say()
    seen = await active(suite.stub, 2)

    assert seen.plan.reason.startswith("holds pinned plan 1: fleet: large on ")
    assert layout(seen.plan) == layout(first)
    assert await pinned(suite.stub) == 1


async def test_what_is_left_of_a_pinned_plan_serves_on_and_all_of_it_when_its_gpu_is_back(
    tmp_path: Path, grid: Grid
) -> None:
    nodes = ("node-a", "node-b")
    one, other = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with planner(deployment(tmp_path, grid.port, nodes)) as stub, living(one, stub):
        async with living(other, stub):
            first = (await active(stub, 1)).plan
            await stub.Pin(planner_pb2.PinRequest())
        left = (await active(stub, 2)).plan
        async with living(other, stub):
            whole = (await active(stub, 3)).plan

    assert left.reason.startswith(
        "what is left of pinned plan 1: GPU GPU-2 of node-b is away; fleet: "
    )
    assert {each.node for each in left.segments} == {"node-a"}
    assert sum(each.share for each in left.segments) == pytest.approx(1.0)
    assert layout(whole) == layout(first)


async def test_where_nothing_is_left_of_a_pinned_plan_requests_are_served_all_the_same(
    tmp_path: Path, grid: Grid
) -> None:
    """The pinned plan's only GPU is another now: the strategy decides, and the plan says why."""
    agent = Agent("node-a", ("GPU-1",))
    async with planner(deployment(tmp_path, grid.port)) as stub:
        async with living(agent, stub):
            await active(stub, 1)
            await stub.Pin(planner_pb2.PinRequest())
        async with living(Agent("node-a", ("GPU-9",)), stub):
            seen = await active(stub, 2)

    assert seen.plan.reason.startswith(
        "pinned plan 1 cannot be held: GPU GPU-1 of node-a is away; fleet: "
    )
    assert {each.spec.gpu_uuid for each in seen.plan.segments} == {"GPU-9"}


async def test_only_the_active_plan_can_be_pinned(suite: Suite) -> None:
    none_yet = await refusal(suite.stub.Pin(planner_pb2.PinRequest(version=9)))
    await active(suite.stub, 1)
    await aim(suite.stub, "co2opt")
    await active(suite.stub, 2)
    older = await refusal(suite.stub.Pin(planner_pb2.PinRequest(version=1)))

    assert none_yet[0] is grpc.StatusCode.NOT_FOUND
    assert older[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert "plan 1 is not the active one, which is 2; roll back to it instead" in older[1]
    assert await pinned(suite.stub) == 0


# ---- freezing ----------------------------------------------------------------------------------


async def freeze(stub: PlannerServiceAsyncStub, *, hours: float = 1.0) -> None:
    request = planner_pb2.FreezeRequest(reason="sale")
    request.until.FromDatetime(datetime.now(UTC) + timedelta(hours=hours))
    await stub.Freeze(request)


async def held(stub: PlannerServiceAsyncStub) -> str:
    return (await stub.GetFleet(planner_pb2.GetFleetRequest())).hold.why


async def test_a_freeze_holds_what_runs_over_a_restart_until_it_is_ended(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port)
    agent = Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        await freeze(stub)
    async with planner(settings) as stub, living(agent, stub):
        await aim(stub, "co2opt")
        await connected(stub, "node-a")
        await quiet(stub, agent)
        frozen, why = await plan(stub), await held(stub)
        await stub.Unfreeze(planner_pb2.UnfreezeRequest())
        seen = await active(stub, 2)

        assert (frozen.version, why) == (1, "frozen: sale")
        assert seen.plan.reason.startswith("objective: strategy base -> co2opt")
        assert await held(stub) == ""


async def test_lost_segments_are_replaced_in_a_freeze_and_nothing_else_is_changed(
    suite: Suite,
) -> None:
    first = (await active(suite.stub, 1)).plan
    await freeze(suite.stub)
    await aim(suite.stub, "exact")
    del suite.agent.segments[next(iter(suite.agent.segments))]
    suite.agent.say()
    seen = await active(suite.stub, 2)

    assert seen.plan.reason.startswith("fleet: large on ")
    assert layout(seen.plan) <= layout(first)


async def test_orders_for_other_plans_are_refused_in_a_freeze(suite: Suite) -> None:
    await active(suite.stub, 1)
    proposal = await suite.stub.DryRun(planner_pb2.DryRunRequest())
    await freeze(suite.stub)
    applied = await refusal(
        suite.stub.Apply(planner_pb2.ApplyRequest(proposal_id=proposal.proposal_id))
    )
    back = await refusal(suite.stub.Rollback(planner_pb2.RollbackRequest(version=1)))

    for code, message in (applied, back):
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert message.endswith("`cinquefoil plan unfreeze` first")


@pytest.mark.parametrize("hours", [-1.0, 24 * 400])
async def test_a_freeze_that_is_over_or_endless_is_refused(suite: Suite, hours: float) -> None:
    code, message = await refusal(freeze(suite.stub, hours=hours))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith("until: must be within a year from now")


# ---- going back --------------------------------------------------------------------------------


async def test_a_rollback_carries_an_earlier_plan_out_again_and_holds_it(suite: Suite) -> None:
    first = (await active(suite.stub, 1)).plan
    await aim(suite.stub, "co2opt")
    await active(suite.stub, 2)
    answer = await suite.stub.Rollback(planner_pb2.RollbackRequest(version=1))
    seen = await active(suite.stub, 3)

    assert answer.plan.version == 3
    assert (seen.plan.reason, seen.plan.strategy) == ("rollback to 1", "base")
    assert layout(seen.plan) == layout(first)
    assert variants(seen.routing) == {"large"}
    assert await pinned(suite.stub) == 3
    assert {each.spec.segment_id for each in seen.plan.segments} == suite.agent.segments.keys()


async def test_a_rollback_that_the_fleet_cannot_hold_changes_nothing(
    tmp_path: Path, grid: Grid
) -> None:
    nodes = ("node-a", "node-b")
    one, other = Agent("node-a", ("GPU-1",)), Agent("node-b", ("GPU-2",))
    async with planner(deployment(tmp_path, grid.port, nodes)) as stub, living(one, stub):
        async with living(other, stub):
            await active(stub, 1)
        await active(stub, 2)
        taken = len(one.steps)
        answer = await refusal(stub.Rollback(planner_pb2.RollbackRequest(version=1)))
        unknown = await refusal(stub.Rollback(planner_pb2.RollbackRequest(version=7)))

        assert answer == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "GPU GPU-2 of node-b is away",
        )
        assert unknown[0] is grpc.StatusCode.NOT_FOUND
        assert ((await plan(stub)).version, await pinned(stub), len(one.steps)) == (2, 0, taken)


async def test_orders_wait_for_the_rollout_that_is_under_way(suite: Suite) -> None:
    await active(suite.stub, 1)
    suite.agent.gate.clear()
    await aim(suite.stub, "co2opt")
    await watch(suite.stub, lambda seen: seen.plan.version == 2)
    waiting = suite.stub.Rollback(planner_pb2.RollbackRequest(version=1))
    await ordered(suite.stub)
    before = waiting.done()
    suite.agent.gate.set()
    answer = await waiting
    await active(suite.stub, 3)

    assert not before
    assert answer.plan.version == 3
    assert (await plan(suite.stub, 2)).state == plan_pb2.PLAN_STATE_SUPERSEDED


async def test_an_order_whose_giver_has_gone_is_not_carried_out(suite: Suite) -> None:
    await active(suite.stub, 1)
    suite.agent.gate.clear()
    await aim(suite.stub, "co2opt")
    await watch(suite.stub, lambda seen: seen.plan.version == 2)
    gone = suite.stub.Rollback(planner_pb2.RollbackRequest(version=1))
    await ordered(suite.stub)
    gone.cancel()
    await abandoned(suite.stub)
    suite.agent.gate.set()
    await active(suite.stub, 2)
    await quiet(suite.stub, suite.agent)

    assert (await plan(suite.stub)).version == 2


# ---- dry runs ----------------------------------------------------------------------------------


async def test_a_dry_run_touches_nothing_and_can_be_applied(suite: Suite) -> None:
    await active(suite.stub, 1)
    taken = len(suite.agent.steps)
    what_if = planner_pb2.WhatIf(strategy="co2opt")
    answer = await suite.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if))
    untouched = ((await plan(suite.stub)).version, len(suite.agent.steps))
    await suite.stub.Apply(planner_pb2.ApplyRequest(proposal_id=answer.proposal_id))
    seen = await active(suite.stub, 2)
    await quiet(suite.stub, suite.agent)

    assert (answer.plan.version, untouched) == (0, (1, taken))
    assert (seen.plan.reason, seen.plan.strategy) == ("apply: dry run", "co2opt")
    assert variants(seen.routing) == {"small"}
    assert {each.spec.segment_id for each in answer.plan.segments} == suite.agent.segments.keys()
    assert (await plan(suite.stub)).version == 2, "the applied plan stays until something changes"


async def test_an_applied_plan_is_not_undone_for_a_report_that_comes_late(suite: Suite) -> None:
    """Nothing delays causes here: a report of before the rollout's end would be one."""
    await active(suite.stub, 1)
    await aim(suite.stub, "co2opt")
    await active(suite.stub, 2)
    suite.agent.lag_s = 0.3
    what_if = planner_pb2.WhatIf(strategy="exact")
    answer = await suite.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if))
    await suite.stub.Apply(planner_pb2.ApplyRequest(proposal_id=answer.proposal_id))
    await active(suite.stub, 3)
    await until(lambda: suite.agent.late == 0)
    await quiet(suite.stub, suite.agent)

    assert suite.agent.steps[-1].HasField("stop_segment")
    assert (await plan(suite.stub)).version == 3


async def test_nothing_is_applied_while_a_plan_is_pinned(suite: Suite) -> None:
    await active(suite.stub, 1)
    what_if = planner_pb2.WhatIf(strategy="co2opt")
    answer = await suite.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if))
    await suite.stub.Pin(planner_pb2.PinRequest())
    apply = planner_pb2.ApplyRequest(proposal_id=answer.proposal_id)
    refused = await refusal(suite.stub.Apply(apply))
    held = (await plan(suite.stub)).version
    await suite.stub.Unpin(planner_pb2.UnpinRequest())
    await suite.stub.Apply(apply)
    seen = await active(suite.stub, 2)

    assert refused == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "plan 1 is pinned; `cinquefoil plan unpin` first",
    )
    assert held == 1
    assert seen.plan.reason == "apply: dry run"


async def test_an_applied_plan_whose_rollout_fails_is_tried_again_by_the_strategy(
    suite: Suite,
) -> None:
    await active(suite.stub, 1)
    faults = ["no power"]

    def fail_once(step: Act) -> str:
        return faults.pop() if step.HasField("start_segment") and faults else ""

    suite.agent.refuse = fail_once
    what_if = planner_pb2.WhatIf(strategy="co2opt")
    answer = await suite.stub.DryRun(planner_pb2.DryRunRequest(what_if=what_if))
    await suite.stub.Apply(planner_pb2.ApplyRequest(proposal_id=answer.proposal_id))
    seen = await active(suite.stub, 3)

    assert (await plan(suite.stub, 2)).state == plan_pb2.PLAN_STATE_FAILED
    assert seen.plan.reason.startswith("retry: plan 2 failed")
    await until(lambda: len(suite.agent.segments) == len(seen.plan.segments))


# ---- who ordered -------------------------------------------------------------------------------


async def test_plans_say_which_operator_ordered_them(tmp_path: Path) -> None:
    """Objective, apply, pin and rollback carry the identity of the certificate."""
    tls, port = issued(tmp_path, "planner", "carbon", "operator/ada", "agent/node-a"), free_port()
    carbon_port, ada = free_port(), "spiffe://cinquefoil/operator/ada"
    secured = deployment(tmp_path, carbon_port, listen=f"127.0.0.1:{port}")
    async with (
        carbon(port=carbon_port, tls=tls.of("carbon")),
        planner(secured.model_copy(update={"tls": tls})) as stub,
        dial(f"127.0.0.1:{port}", tls.of("agent", "node-a")) as channel,
        living(Agent("node-a", ("GPU-1",)), PlannerServiceStub(channel)),
    ):
        await active(stub, 1)
        await aim(stub, "co2opt")
        await active(stub, 2)
        proposal = await stub.DryRun(planner_pb2.DryRunRequest())
        await stub.Apply(planner_pb2.ApplyRequest(proposal_id=proposal.proposal_id))
        await active(stub, 3)
        await stub.Pin(planner_pb2.PinRequest())
        held = await stub.ListPlans(planner_pb2.ListPlansRequest())
        await stub.Rollback(planner_pb2.RollbackRequest(version=1))
        await active(stub, 4)
        listed = await stub.ListPlans(planner_pb2.ListPlansRequest())

    assert (held.pinned_version, held.pinned_by) == (3, ada)
    assert (listed.pinned_version, listed.pinned_by) == (4, ada)
    assert [each.reason for each in listed.plans][:3] == [
        f"rollback to 1 (by {ada})",
        f"apply: dry run (by {ada})",
        f"objective: strategy base -> co2opt (by {ada})",
    ]


# ---- what is held says so ----------------------------------------------------------------------


async def held_back(stub: PlannerServiceAsyncStub) -> dict[tuple[str, str], str]:
    """Return the sentences of the holds, by kind and subject."""
    fleet = await stub.GetFleet(planner_pb2.GetFleetRequest())
    found = conditions_from(fleet.conditions)
    return {(each.kind.name, each.subject): each.sentence for each in found if each.kind in HOLDS}


async def added(stub: PlannerServiceAsyncStub, settings: Deployment) -> None:
    """Add a model to the deployment of a planner that runs."""
    text = settings.models["digits"]
    models = {"models": {**settings.models, "text": text}}
    await reload(stub, settings.model_copy(update=models))


@pytest.mark.parametrize("order", ["pin", "rollback", "freeze"])
async def test_a_model_that_a_hold_leaves_out_is_stopped_by_it_until_it_ends(
    order: str, tmp_path: Path, grid: Grid
) -> None:
    """Operator and times are named; subscribers get it; afterwards the model is planned for."""
    settings = deployment(tmp_path, grid.port)
    kind = "FROZEN" if order == "freeze" else "PLAN_HELD"
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        await active(stub, 1)
        version = 1
        if order == "freeze":
            request = planner_pb2.FreezeRequest(reason="sales")
            request.until.FromDatetime(datetime.now(UTC) + timedelta(hours=3))
            await stub.Freeze(request)
        elif order == "pin":
            await stub.Pin(planner_pb2.PinRequest())
        else:
            await stub.Rollback(planner_pb2.RollbackRequest(version=1))
            version = 2
        await active(stub, version)
        assert (await held_back(stub)).keys() == {(kind, "plan")}
        await added(stub, settings)
        seen = await watch(stub, lambda seen: any("text" in c.subject for c in seen.conditions))
        held = await held_back(stub)
        await stub.Unfreeze(planner_pb2.UnfreezeRequest())
        await stub.Unpin(planner_pb2.UnpinRequest())
        later = (await active(stub, version + 1)).plan
        ended = await held_back(stub)

    assert held.keys() == {(kind, "plan"), (kind, "model/text")}
    assert {each.subject for each in seen.conditions} == {"plan", "model/text"}
    whole = held[kind, "plan"]
    if kind == "FROZEN":
        assert "(sales)" in whole
        assert f"until {request.until.ToDatetime():%Y-%m-%d %H:%M} UTC" in whole
    else:
        assert f"plan {version} is pinned since {datetime.now(UTC):%Y-%m-%d}" in whole
    assert "text" in later.inputs.demand_rps
    assert not ended


async def test_a_pin_keeps_its_time_over_a_restart(tmp_path: Path, grid: Grid) -> None:
    """The sentence of a pin is the same before and after."""
    settings, agent = deployment(tmp_path, grid.port), Agent("node-a", ("GPU-1",))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        await stub.Pin(planner_pb2.PinRequest())
        before = await held_back(stub)
    async with planner(settings) as stub, living(agent, stub):
        await connected(stub, "node-a")

        assert (await held_back(stub)) == before


async def test_outside_maintenance_windows_the_next_one_is_named(
    tmp_path: Path, grid: Grid
) -> None:
    """A condition without an order has the setting and the time when it ends."""
    opens = datetime.now(UTC) + timedelta(hours=2)
    window = MaintenanceWindow(start=f"{opens:%H:%M}", length_s=60)
    settings = deployment(tmp_path, grid.port)
    held_back_by = settings.planner.model_copy(update={"maintenance": (window,)})
    settings = settings.model_copy(update={"planner": held_back_by})
    async with planner(settings) as stub, living(Agent("node-a", ("GPU-1",)), stub):
        await active(stub, 1)
        await added(stub, settings)
        held = await held_back(stub)

    assert held.keys() == {("MAINTENANCE", "plan"), ("MAINTENANCE", "model/text")}
    assert f"until {opens:%Y-%m-%d %H:%M} UTC" in held["MAINTENANCE", "model/text"]

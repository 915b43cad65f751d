"""From a snapshot to a decision, and back: what was decided and done is decided again."""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentSpec, SegmentState
from services.kit.config import Accounting, Embodied, Objective, Planner
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.profiles.core.profile import BatchCost, Profile, SliceShape
from services.planner.core.decide import Snapshot, configuration_of, pose
from services.planner.core.decide import running as planner_running
from services.planner.core.explain.explain import DecidedPlan, explain
from services.planner.core.model import Gpu
from services.planner.core.placement.actions import StopSegment
from services.planner.core.problem.pricing import Prices, prices
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples
from tests.support.planner.decisions import MODEL, POOL, analytic, decided, done, snapshot


@examples(0.12)
@given(
    st.sampled_from(sorted(REGISTRY.keys() - {"annealing"})), st.floats(5, 1500), st.integers(1, 3)
)
def test_a_decision_that_was_carried_out_is_kept(
    strategy: str, intensity: float, gpus: int
) -> None:
    """The planner comes to rest. Annealing walks on from what runs by design."""
    before = snapshot(strategy, intensity=intensity, gpus=gpus)
    first = decided(before)
    again = decided(done(before, first), "t")

    assert again.rollout.actions == 0
    assert {s.identity for s in again.target} == {s.identity for s in first.target}
    assert {s.segment_id for s in again.target} == {s.segment_id for s in first.target}


@pytest.mark.parametrize("strategy", sorted(REGISTRY))
def test_every_strategy_serves_the_demand_with_shares_that_sum_to_one(strategy: str) -> None:
    decision = decided(snapshot(strategy))

    assert decision.target
    assert sum(segment.share for segment in decision.target) == pytest.approx(1.0)
    assert decision.score.unserved_rps == pytest.approx({"digits": 0.0})


@examples(0.12)
@given(st.sampled_from(sorted(REGISTRY.keys() - {"annealing"})), st.integers(2, 3))
def test_a_gpu_that_an_operator_waits_for_is_left_after_others_have_taken_over(
    strategy: str, gpus: int
) -> None:
    """Nothing is planned on it, what ran there ends, and the model keeps its demand meanwhile."""
    before = snapshot(strategy, gpus=gpus)
    served = done(before, decided(before))
    wanted = served.gpus[0]
    shrunk = replace(served, gpus=served.gpus[1:], leaving=(wanted,))
    decision = decided(shrunk, "t")

    assert {segment.gpu_uuid for segment in decision.target} <= {gpu.uuid for gpu in shrunk.gpus}
    actions = [a for stage in decision.rollout.stages for step in stage.actions for a in step]
    stopped = {action.segment_id for action in actions if isinstance(action, StopSegment)}
    left = {s.spec.segment_id for s in served.running if s.spec.gpu_uuid == wanted.uuid}
    assert left <= stopped
    kept = {segment.segment_id for segment in decision.target}
    assert stopped.isdisjoint(kept)
    assert decision.rollout.least_capacity["digits"] >= 1
    assert wanted.uuid in decision.nodes


def test_a_fleet_that_operators_wait_for_altogether_is_no_fleet() -> None:
    before = snapshot(gpus=1)

    with pytest.raises(FailedPrecondition, match="operators have taken every one out of use"):
        decided(replace(before, gpus=(), leaving=before.gpus))


def test_what_runs_is_stopped_where_the_deployment_no_longer_knows_it() -> None:
    """A variant or model that was taken out of the file has no profile, and no place."""
    before = snapshot()
    foreign = SegmentSpec("old-1", "letters", "tiny", 4, 1, "GPU-0", Placement("1g.5gb", 6))
    known = replace(
        before,
        gpus=(replace(before.gpus[0], slices=(foreign.placement,)), before.gpus[1]),
        running=(Segment(foreign, SegmentState.READY, ("h:1",)),),
    )
    decision = decided(known)

    assert "old-1" not in {segment.segment_id for segment in decision.target}
    assert decision.rollout.actions > 0


def test_a_segment_that_drains_is_not_kept() -> None:
    before = snapshot()
    first = decided(before)
    after = done(before, first)
    leaving, *others = after.running
    drained = replace(after, running=(replace(leaving, state=SegmentState.DRAINING), *others))
    again = decided(drained, "t")

    assert leaving.spec.segment_id not in {segment.segment_id for segment in again.target}


def test_segments_on_gpus_that_are_gone_do_not_matter() -> None:
    before = snapshot(gpus=2)
    after = done(before, decided(snapshot("base", gpus=2)))
    lost = replace(after, gpus=after.gpus[:1])
    decision = decided(lost, "t")

    assert {segment.gpu_uuid for segment in decision.target} == {"GPU-0"}
    assert {segment.gpu_uuid for segment in decision.running} <= {"GPU-0"}


# ---- bad input ---------------------------------------------------------------------------------


def degraded(snapshot: Snapshot) -> str:
    return decided(snapshot).degraded


def test_a_plan_that_keeps_everything_is_not_degraded() -> None:
    assert degraded(snapshot()) == ""


def test_a_fleet_without_gpus_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="the fleet has no GPU"):
        decided(replace(snapshot(), gpus=()))


@pytest.mark.parametrize("demand_rps", [-1.0, math.nan, math.inf])
def test_a_demand_that_cannot_be_is_refused_by_name(demand_rps: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decided(replace(snapshot(), models=(replace(MODEL, demand_rps=demand_rps),)))

    assert caught.value.field == "models[digits].demand_rps"


@pytest.mark.parametrize("strategy", sorted(REGISTRY))
def test_ten_times_the_load_is_a_degraded_plan_that_says_how_much_is_not_served(
    strategy: str,
) -> None:
    seen = snapshot(strategy, gpus=1)
    found = degraded(replace(seen, models=(replace(MODEL, demand_rps=100_000.0),)))

    assert re.match(r"digits: \d+\.\d of 100000\.0 req/s are not served in time: 1 GPU", found)


@pytest.mark.parametrize("strategy", sorted(REGISTRY))
def test_a_model_that_nothing_can_serve_degrades_the_plan_and_not_its_neighbours(
    strategy: str,
) -> None:
    hopeless = replace(MODEL, name="hopeless", slo_latency_s=1e-6)
    seen = replace(snapshot(strategy), models=(MODEL, hopeless))
    found = decided(seen)

    assert "hopeless: no variant on a100-40gb takes at most 5e-07 s per batch; the fastest" in (
        found.degraded
    )
    assert ("NO_VARIANT_MEETS_SLO", "models.hopeless.slo.latency_s") in {
        (each.kind.name, each.setting) for each in found.conditions
    }
    assert found.score.unserved_rps["digits"] == pytest.approx(0.0)


def test_a_floor_that_no_plan_can_keep_is_reported() -> None:
    """The only variant in time is not accurate enough."""
    slow = replace(MODEL.variants[1], profile=analytic(100_000.0))
    model = replace(MODEL, variants=(MODEL.variants[0], slow))
    seen = replace(snapshot(), models=(model,), objective=Objective(accuracy_floor=0.99))

    assert degraded(seen).startswith("accuracy: the floor of 99.0% of the best variants' is missed")


def test_gpus_that_no_profile_knows_are_reported_and_left_alone() -> None:
    table = replace(POOL, type=replace(POOL.type, name="b300"))
    known = Measured("a100-40gb", MODEL.variants[0].profile)
    model = replace(MODEL, variants=(replace(MODEL.variants[0], profile=known),))
    seen = snapshot()
    found = decided(
        replace(seen, models=(model,), gpus=(*seen.gpus, Gpu("GPU-x", "node-b", table)))
    )

    assert found.degraded == "1 x b300 stay unused: no profile allows a segment on them"
    assert {each.gpu_uuid for each in found.target} <= {"GPU-0", "GPU-1"}


@dataclass(frozen=True)
class Measured:
    """A profile that knows one GPU type only, as measured tables do."""

    gpu: str
    inner: Profile
    method: Literal["model", "table"] = "table"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        if shape.gpu != self.gpu:
            return None
        return self.inner.batch(shape, batch_size, processes, clock_ratio=clock_ratio)


@pytest.mark.parametrize("strategy", sorted(REGISTRY))
@pytest.mark.parametrize("gone", ["variant", "model"])
def test_what_was_removed_from_the_deployment_is_stopped(strategy: str, gone: str) -> None:
    """A plan and its explanation do not divide by its capacity, which is nothing."""
    before = snapshot(strategy, gpus=1)
    running = decided(before)
    served = done(before, running)
    name = running.target[0].kind.variant
    left = tuple(variant for variant in MODEL.variants if variant.name != name)
    models = (
        (replace(MODEL, variants=left),) if gone == "variant" else (replace(MODEL, name="other"),)
    )
    decision = decided(replace(served, models=models), "t")

    actions = [a for stage in decision.rollout.stages for step in stage.actions for a in step]
    stopped = {action.segment_id for action in actions if isinstance(action, StopSegment)}
    assert stopped >= {
        run.spec.segment_id for run in served.running if gone == "model" or run.spec.variant == name
    }
    assert {s.kind.model for s in decision.target} == {models[0].name}
    old = configuration_of(planner_running(replace(served, models=models)), decision.problem)
    for configuration in (decision.configuration, old):
        assert explain(DecidedPlan(0, decision.problem, configuration, 0.0)).version == 0


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_powered_gpu_bears_its_share_of_its_hosts_idle_power(gpus: int) -> None:
    """300 W of a node: all of it for its only GPU, half of it for each of two; not by default."""
    now = snapshot(gpus=gpus)

    def points(host_idle_w: float) -> Prices:
        update = {"park_idle_gpus": True, "host_idle_w": host_idle_w}
        return prices(
            pose(replace(now, objective=now.objective.model_copy(update=update)), Planner())
        )

    pool, without, with_it = now.gpus[0].pool, points(0.0), points(300.0)
    more = without.carbon_points(pool.carbon_gco2e(300.0 / gpus))
    assert len({gpu.node for gpu in now.gpus}) == 1
    assert more > 0
    assert with_it.gpu_points(pool) - without.gpu_points(pool) == pytest.approx(more)


@pytest.mark.parametrize("park", [True, False])
def test_a_powered_gpus_embodied_carbon_counts_where_plans_are_to_count_it(park: bool) -> None:
    """1,000 kg over a year for each powered GPU: a price of a GPU where it can be parked."""
    now = snapshot()
    now = replace(now, objective=now.objective.model_copy(update={"park_idle_gpus": park}))
    embodied = Embodied(lifetime_y=1.0, kgco2e={now.gpus[0].pool.type.name: 1000.0})
    counted = embodied.model_copy(update={"in_plans": True})
    without, with_it = (
        prices(pose(now, Planner(accounting=Accounting(embodied=each))))
        for each in (embodied, counted)
    )
    pool = now.gpus[0].pool
    per_s = 1e6 / (365.25 * 86_400)
    more = without.carbon_points(per_s)
    assert more > 0
    assert with_it.idle_points(pool) == pytest.approx(without.idle_points(pool) + more)
    difference = with_it.gpu_points(pool) - without.gpu_points(pool)
    assert difference == pytest.approx(more if park else 0.0)
    fixed = without.fixed_points + (0.0 if park else len(now.gpus) * more)
    assert with_it.fixed_points == pytest.approx(fixed)

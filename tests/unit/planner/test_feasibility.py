"""Plans of before on the fleet of now."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.planner.v1.records import Plan, PlannedSegment
from services.kit.errors import InvalidArgument
from services.planner.core import feasibility
from services.planner.core.model import Gpu, Segment
from services.planner.core.plan_builder import build_plan
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples
from tests.support.planner.decisions import MODEL, POOL, decided, done, snapshot
from tests.support.planner.stored_plans import NOW


def made(strategy: str = "co2opt", gpus: int = 2) -> Plan:
    """A plan that the planner itself would make."""
    seen = snapshot(strategy, gpus=gpus)
    return build_plan(decided(seen), seen, reason="because", now=NOW)


def again(plan: Plan, gpus: tuple[Gpu, ...], running: tuple[Segment, ...]) -> tuple[Segment, ...]:
    return feasibility.target(plan, gpus, (MODEL,), running, lambda given: f"new-{given}")


@examples(0.12)
@given(st.sampled_from(sorted(REGISTRY)), st.integers(1, 3))
def test_a_plan_is_held_by_the_fleet_it_was_made_for(strategy: str, gpus: int) -> None:
    plan = made(strategy, gpus)
    fleet = snapshot(gpus=gpus).gpus

    assert feasibility.lacks(plan.segments, fleet, (MODEL,)) == ()
    assert feasibility.left_of(plan.segments, fleet, (MODEL,)) == plan.segments
    feasibility.check(plan.segments)


def test_a_gpu_that_is_away_or_elsewhere_is_missing() -> None:
    plan = made("base")
    here, other = snapshot().gpus
    moved = replace(other, node="node-b")

    assert feasibility.lacks(plan.segments, (here,), (MODEL,)) == ("GPU GPU-1 of node-a is away",)
    assert feasibility.lacks(plan.segments, (here, moved), (MODEL,)) == (
        "GPU GPU-1 of node-a is away",
    )
    left = feasibility.left_of(plan.segments, (here,), (MODEL,))
    assert {each.spec.gpu_uuid for each in left} == {"GPU-0"}


def test_a_variant_that_the_deployment_no_longer_has_is_missing() -> None:
    plan, fewer = made("base"), replace(MODEL, variants=MODEL.variants[:1])

    assert set(feasibility.lacks(plan.segments, snapshot().gpus, (fewer,))) == {
        "the deployment has no variant 'large' of model 'digits'"
    }


def segment(placement: Placement, share: float = 1.0, **spec: Any) -> PlannedSegment:
    sizes: dict[str, Any] = {"batch_size": 4, "processes": 1, **spec}
    made = SegmentSpec("s-1", "digits", "small", gpu_uuid="GPU-0", placement=placement, **sizes)
    return PlannedSegment(made, "node-a", share, 10.0, 0.1)


@pytest.mark.parametrize(
    ("segments", "fault"),
    [
        ([segment(Placement("9g.90gb", 0))], "no profile '9g.90gb'"),
        ([segment(Placement("1g.5gb", 6)), segment(Placement("7g.40gb", 0))], "overlaps 1g.5gb@6"),
        ([segment(Placement("1g.5gb", 0), processes=40)], "small does not fit on 1g.5gb@0"),
    ],
)
def test_what_hardware_would_refuse_is_reported(segments: list[PlannedSegment], fault: str) -> None:
    (found,) = feasibility.lacks(segments, snapshot().gpus, (MODEL,))

    assert fault in found


@pytest.mark.parametrize(
    ("segments", "field"),
    [
        ([segment(Placement("1g.5gb", 0), share=float("nan"))], "plan.segments[0].share"),
        ([segment(Placement("1g.5gb", 0), share=0.5)], "plan.segments"),
    ],
)
def test_shares_that_cannot_be_are_refused(segments: list[PlannedSegment], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        feasibility.check(segments)

    assert caught.value.field == field


def test_what_runs_of_a_plan_stays_and_the_rest_gets_new_names() -> None:
    seen = snapshot("co2opt")
    decision = decided(seen)
    plan = build_plan(decision, seen, reason="because", now=NOW)
    after = done(seen, decision)
    gone, *running = decision.target
    found = again(plan, after.gpus, tuple(running))

    assert {each.segment_id for each in found} == {
        f"new-{gone.segment_id}",
        *(each.segment_id for each in running),
    }
    assert sorted(each.placement for each in found) == sorted(
        each.placement for each in [*running, gone]
    )


def test_a_plan_keeps_its_clocks_and_they_slow_its_segments() -> None:
    slow = replace(made("base", 1), clocks_mhz={"GPU-0": 705})
    kind = replace(POOL.type, max_clock_mhz=1410)
    gpu = Gpu("GPU-0", "node-a", replace(POOL, type=kind))
    (fast,) = feasibility.resumed(made("base", 1), (gpu,), (MODEL,))
    (found,) = feasibility.resumed(slow, (gpu,), (MODEL,))

    assert (fast.kind.clock_mhz, found.kind.clock_mhz) == (0, 705)
    assert found.kind.throughput_rps < fast.kind.throughput_rps

"""ParvaGPU's maps and strategies: valid, complete, incremental, never better than the optimum."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Goals, Objective
from services.kit.mig import WHOLE
from services.planner.core.model import Model, Problem, Segment, SegmentKind
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import gpcs
from services.planner.core.problem.score import score
from services.planner.core.strategies import Strategy
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.parvagpu.configurator import triplets
from services.planner.core.strategies.parvagpu.strategy import (
    Allocation,
    allocate,
    configuration,
    parvagpu,
    single,
)
from tests.support.examples import examples
from tests.support.planner import fleets

OBJECTIVE = Objective(
    goals=Goals(clover=0.0, fewest_gpus=1.0),
    max_utilisation=1.0,
    latency_rule="batch",
    park_idle_gpus=True,
)
"""The paper's: segments are full, and batches alone keep the latency."""
VARIANTS: dict[str, Strategy] = {
    "parvagpu": parvagpu,
    "single": lambda problem: parvagpu(single(problem)),
    "unoptimized": lambda problem: configuration(problem, allocate(problem, optimise=False)),
}
"""The strategy, and the two weaker ones that the paper compares it with."""
PLENTY = 60


@st.composite
def services(draw: st.DrawFn, most: int = 4) -> list[Model]:
    """Networks from MobileNet's to VGG's arithmetic, tight and loose, idle and busy."""
    return [
        fleets.model(
            f"model-{index}",
            gmacs=[draw(st.floats(0.3, 20.0))],
            accuracies=[80.0],
            demand_rps=draw(st.floats(1.0, 4000.0)),
            slo_s=draw(st.floats(0.08, 0.5)),
        )
        for index in range(draw(st.integers(1, most)))
    ]


def problem(models: Iterable[Model], *pools: tuple[str, int]) -> Problem:
    found = [(fleets.pool(name), number) for name, number in pools]
    return fleets.problem(fleets.fleet(*found), list(models), OBJECTIVE, batch_sizes=(1, 4, 16))


def running(allocation: Allocation) -> tuple[Segment, ...]:
    """Return the segments that run once a map is rolled out."""
    return tuple(
        Segment(f"{each.gpu.uuid}/{where}", kind, each.gpu.node, each.gpu.uuid, where, 0.0)
        for each in allocation.gpus
        for where, kind in each.segments.items()
    )


def places(allocation: Allocation, *, but: str = "") -> set[tuple[str, Placement, SegmentKind]]:
    return {
        (segment.gpu_uuid, segment.placement, segment.kind)
        for segment in running(allocation)
        if segment.kind.model != but
    }


def capacity_rps(allocation: Allocation) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for kind, number in allocation.segments.items():
        found[kind.model] = found.get(kind.model, 0.0) + number * kind.throughput_rps
    return found


def check(posed: Problem, found: Allocation) -> None:
    """Check the invariants of every map."""
    for each in found.gpus:
        assert not each.gpu.pool.type.geometry.problem(tuple(each.segments))
        assert all(kind.pool == each.gpu.pool for kind in each.segments.values())
        assert all(where.profile == kind.profile for where, kind in each.segments.items())
    assert len({each.gpu.uuid for each in found.gpus}) == len(found.gpus)
    served_rps = capacity_rps(found)
    for model in posed.models:
        unserved_rps = found.unserved_rps.get(model.name, 0.0)
        missing_rps = model.demand_rps - served_rps.get(model.name, 0.0)
        assert unserved_rps == pytest.approx(max(0.0, missing_rps), abs=1e-6 * model.demand_rps)
    slo_s = {model.name: model.slo_latency_s for model in posed.models}
    assert all(kind.latency_s <= 0.5 * slo_s[kind.model] for kind in found.segments)


@examples(0.6)
@given(services(), st.booleans())
def test_maps_are_valid_and_meet_the_demand_within_the_latency_rule(
    models: list[Model], optimise: bool
) -> None:
    posed = problem(models, ("a100-80gb", PLENTY))
    for each in (posed, single(posed)):
        found = allocate(each, optimise=optimise)
        check(each, found)
        servable = set(triplets(each)[each.gpus[0].pool])
        assert not servable & set(found.unserved_rps)


@examples(0.6)
@given(services(), st.floats(1.0, 20.0), st.integers(1, 3), st.integers(0, 3))
def test_a_fleet_that_is_too_small_is_filled_up_and_the_rest_is_marked(
    models: list[Model], overload: float, large: int, small: int
) -> None:
    """No segment that would serve more of what is short fits anywhere."""
    busy = [replace(each, demand_rps=1000.0 + overload * each.demand_rps) for each in models]
    posed = problem(busy, ("a100-80gb", large), ("t4", small))
    found = allocate(posed)
    check(posed, found)
    known = triplets(posed)
    layouts = {each.gpu.uuid: tuple(each.segments) for each in found.gpus}
    for gpu in posed.gpus:
        geometry, layout = gpu.pool.type.geometry, layouts.get(gpu.uuid, ())
        for model in found.unserved_rps:
            for triplet in known[gpu.pool].get(model, ()):
                for spot in triplet.size.spots:
                    place = Placement(triplet.size.profile, spot.start)
                    assert geometry.problem((*layout, place))


@pytest.mark.parametrize("demand_rps", [1e6, 1e12])
def test_any_overload_is_answered(demand_rps: float) -> None:
    """A demand far beyond the fleet, or a wrong one, costs no memory, and the fleet is used."""
    model = fleets.model(gmacs=[5.7], accuracies=[80.0], demand_rps=demand_rps)
    posed = problem([model], ("a100-80gb", 3))
    found = allocate(posed)
    check(posed, found)
    assert size(found) == (3, 21)


@examples(0.6)
@given(services(), st.integers(0, 3), st.sampled_from(["rate", "latency"]), st.floats(0.4, 2.5))
def test_a_model_that_changes_is_planned_alone(
    models: list[Model], which: int, what: str, factor: float
) -> None:
    """Section III-F: every other segment stays where it is."""
    posed = problem(models, ("a100-80gb", PLENTY))
    before = allocate(posed)
    changed = models[which % len(models)]
    after = (
        replace(changed, demand_rps=factor * changed.demand_rps)
        if what == "rate"
        else replace(changed, slo_latency_s=factor * changed.slo_latency_s)
    )
    next_ = problem(
        [after if model is changed else model for model in models], ("a100-80gb", PLENTY)
    )
    found = allocate(replace(next_, running=running(before)))
    check(next_, found)
    if not found.unserved_rps:
        assert places(found, but=changed.name) == places(before, but=changed.name)


@examples(0.8)
@given(services(), st.booleans())
def test_what_is_right_is_left_alone(models: list[Model], optimise: bool) -> None:
    posed = problem(models, ("a100-80gb", PLENTY), ("t4", 2))
    before = allocate(posed, optimise=optimise)
    again = allocate(replace(posed, running=running(before)), optimise=optimise)
    assert places(again) == places(before)


def test_all_is_planned_again_where_keeping_would_leave_demand_unserved() -> None:
    """A slice of one GPC in slot 3 makes way for one of four, which has no other place."""
    small = fleets.model("small", gmacs=[5.7], accuracies=[80.0], demand_rps=100.0, slo_s=0.5)
    big = fleets.model("big", gmacs=[5.7], accuracies=[80.0], demand_rps=1000.0, slo_s=0.5)
    posed = problem([small, big], ("a100-80gb", 1))
    fitting = {"small": "1g.10gb", "big": "4g.40gb"}
    kinds = tuple(kind for kind in posed.catalog if kind.profile == fitting[kind.model])
    posed = replace(posed, catalog=kinds)
    gpu = posed.gpus[0]
    runs = triplets(posed)[gpu.pool]["small"][0].kind
    alone = Segment("s", runs, gpu.node, gpu.uuid, Placement("1g.10gb", 3), 1.0)
    found = allocate(replace(posed, running=(alone,)))
    check(posed, found)
    assert not found.unserved_rps
    assert Placement("4g.40gb", 0) in found.gpus[0].segments


@examples(0.24)
@given(services(most=3))
def test_no_map_needs_fewer_gpus_than_the_proven_optimum(models: list[Model]) -> None:
    posed = problem(models, ("a100-80gb", 16))
    best = exact(posed)
    if best.gap != 0.0:
        return
    served = score(posed, best)
    fewest = gpus_needed(posed, best.segments)
    assert fewest is not None
    for optimise in (True, False):
        found = allocate(posed, optimise=optimise)
        if sum(found.unserved_rps.values()) <= sum(served.unserved_rps.values()) + 1e-6:
            assert len(found.gpus) >= sum(fewest.values())


@examples(0.8)
@given(services(), st.integers(1, 4), st.sampled_from(sorted(VARIANTS)))
def test_strategies_answer_with_their_map_s_segments_and_all_of_the_load(
    models: list[Model], gpus: int, name: str
) -> None:
    """Load follows throughput; the score finds unserved exactly what the map leaves unserved."""
    posed = problem(models, ("a100-80gb", gpus), ("t4", 1))
    found = VARIANTS[name](posed)
    alone = single(posed) if name == "single" else posed
    allocation = allocate(alone, optimise=name != "unoptimized")
    assert found == configuration(posed, allocation)
    assert found.segments == allocation.segments
    if name == "single":
        assert all(kind.processes == 1 for kind in found.segments)
    unserved_rps = score(posed, found).unserved_rps
    for model in models:
        expected = allocation.unserved_rps.get(model.name, 0.0)
        assert unserved_rps[model.name] == pytest.approx(expected, abs=1e-6 * model.demand_rps)


@examples(0.6)
@given(services())
def test_optimisation_costs_neither_gpus_nor_gpcs(models: list[Model]) -> None:
    """Algorithm 2 as printed returns its result even where it is worse."""
    posed = problem(models, ("a100-80gb", PLENTY))
    one, other = (allocate(posed, optimise=optimise) for optimise in (True, False))
    assert size(one) <= size(other)


def size(allocation: Allocation) -> tuple[int, int]:
    return len(allocation.gpus), sum(map(gpcs, allocation.segments.elements()))


def test_a_model_whose_rate_falls_gives_segments_back() -> None:
    model = fleets.model(gmacs=[5.7], accuracies=[80.0], demand_rps=6000.0, slo_s=0.3)
    posed = problem([model], ("a100-80gb", PLENTY))
    before = allocate(posed)
    fallen = problem([replace(model, demand_rps=600.0)], ("a100-80gb", PLENTY))
    found = allocate(replace(fallen, running=running(before)))
    assert size(found) == size(allocate(fallen)) < size(before)


def test_segments_that_cannot_be_split_share_gpus_and_none_is_lost() -> None:
    """The public code frees such segments and forgets them, or leaves each on a GPU of its own."""
    model = fleets.model(gmacs=[5.7], accuracies=[80.0], demand_rps=6000.0, slo_s=0.3)
    posed = problem([model], ("a100-80gb", PLENTY))
    large = tuple(kind for kind in posed.catalog if kind.profile == "3g.40gb")
    found = allocate(replace(posed, catalog=large))
    check(posed, found)
    segments = found.segments.total()
    assert segments >= 2
    assert len(found.gpus) == (segments + 1) // 2


def test_gpus_without_mig_hold_one_segment_each() -> None:
    model = fleets.model(gmacs=[1.0], accuracies=[80.0], demand_rps=300.0, slo_s=1.0)
    posed = problem([model], ("t4", 20))
    found = allocate(posed)
    check(posed, found)
    assert not found.unserved_rps
    assert {tuple(each.segments) for each in found.gpus} == {(Placement(WHOLE, 0),)}


def test_the_faster_pool_is_filled_first_and_the_rest_goes_to_the_next() -> None:
    model = fleets.model(gmacs=[5.7], accuracies=[80.0], demand_rps=1.0, slo_s=0.8)
    one_h100 = problem([replace(model, demand_rps=1e9)], ("h100-80gb", 1))
    limit_rps = capacity_rps(allocate(one_h100))["vision"]
    for share, types in ((0.9, {"h100-80gb"}), (1.5, {"h100-80gb", "t4"})):
        posed = problem(
            [replace(model, demand_rps=share * limit_rps)], ("t4", 90), ("h100-80gb", 1)
        )
        found = allocate(posed)
        assert not found.unserved_rps
        assert {each.gpu.pool.type.name for each in found.gpus} == types


def test_a_model_that_only_one_pool_can_serve_has_precedence_there() -> None:
    """The T4 is too slow for one of them; the other makes room on the only A100."""
    fast = fleets.model("fast", gmacs=[5.7], accuracies=[80.0], demand_rps=2000.0, slo_s=0.022)
    slow = fleets.model("slow", gmacs=[1.0], accuracies=[80.0], demand_rps=90000.0, slo_s=1.5)
    posed = problem([slow, fast], ("a100-80gb", 1), ("t4", 100))
    known = triplets(posed)
    assert [("fast" in known[pool], "slow" in known[pool]) for pool in known] == [
        (True, True),
        (False, True),
    ]
    found = allocate(posed)
    check(posed, found)
    assert not found.unserved_rps


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_nothing_to_do_is_no_error(name: str) -> None:
    """No GPU, no model, no demand."""
    model = fleets.model(gmacs=[5.7], accuracies=[80.0])
    for posed in (
        problem([model]),
        problem([], ("a100-80gb", 1)),
        problem([replace(model, demand_rps=0.0)], ("a100-80gb", 1)),
    ):
        assert not VARIANTS[name](posed).segments


def test_lowered_clocks_are_left_to_others() -> None:
    model = fleets.model(gmacs=[5.7], accuracies=[80.0])
    posed = problem([model], ("a100-80gb", 2))
    lowered = tuple(replace(kind, clock_mhz=900) for kind in posed.catalog)
    assert allocate(replace(posed, catalog=lowered)).unserved_rps
    both = allocate(replace(posed, catalog=(*lowered, *posed.catalog)))
    assert {kind.clock_mhz for kind in both.segments} == {0}

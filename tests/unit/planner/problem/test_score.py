"""The score of a configuration."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.kit.errors import FailedPrecondition
from services.planner.core.model import Configuration, Problem, Score, Segment, SegmentKind
from services.planner.core.problem.pricing import baseline_gco2e
from services.planner.core.problem.score import score
from services.planner.core.problem.shortfall import shortfalls
from services.planner.core.strategies.base import base
from tests.support.examples import examples
from tests.support.planner import fleets

POOL = fleets.pool(intensity=300.0)
GPUS = fleets.fleet((POOL, 2))


def pose(objective: Objective | None = None) -> Problem:
    return fleets.problem(GPUS, [fleets.model(demand_rps=100.0)], objective)


def kind_of(problem: Problem, variant: str, profile: str) -> SegmentKind:
    return max(
        (k for k in problem.catalog if (k.variant, k.profile) == (variant, profile)),
        key=lambda kind: kind.throughput_rps,
    )


def test_one_model_scores_by_the_equations_of_clover() -> None:
    """Eq. 1-3 by hand: energy with idle power and PUE, times intensity, over C_base."""
    problem = pose(Objective(carbon_weight=0.3))
    kind = kind_of(problem, "v1", "3g.20gb")
    found = score(problem, Configuration({kind: 2}, {kind: 100.0}))

    power_w = 2 * 29.0 + 1 * 26.0 + 100.0 * kind.energy_j
    carbon_g = power_w / 100.0 * 1.5 * 300.0 / 3.6e6
    base_g = baseline_gco2e(problem, problem.models[0])
    delta_carbon = 100 * (base_g - carbon_g) / base_g
    delta_accuracy = 100 * (81.5 - 84.6) / 84.6
    assert found.objective == pytest.approx(0.3 * delta_carbon + 0.7 * delta_accuracy)
    assert found.power_w == pytest.approx(power_w)
    assert found.carbon_gco2e_per_h == pytest.approx(power_w * 1.5 * 300.0 / 1000)
    assert found.accuracy == {"vision": pytest.approx(81.5)}
    assert found.unserved_rps == {"vision": 0.0}
    assert found.gpus == 2


def test_the_baseline_is_the_best_variant_on_a_gpu_of_its_own() -> None:
    """At the baseline's intensity BASE on one GPU emits C_base, so that f is 0 at any lambda."""
    for weight in (0.0, 0.3, 1.0):
        objective = Objective(
            carbon_weight=weight, baseline_intensity_gco2e_per_kwh=POOL.intensity_gco2e_per_kwh
        )
        problem = replace(pose(objective), gpus=GPUS[:1])
        assert score(problem, base(problem)).objective == pytest.approx(0.0, abs=1e-9)


@examples(0.25)
@given(load=st.floats(0.0, 100.0), beyond=st.floats(0.0, 1000.0))
def test_served_and_unserved_load_sum_to_the_demand(load: float, beyond: float) -> None:
    """Load above rho x throughput, or above the demand, is not served twice."""
    problem = pose(Objective(latency_rule="batch"))
    kind = kind_of(problem, "v3", "3g.20gb")
    found = score(problem, Configuration({kind: 1}, {kind: load + beyond}))
    served = min(load + beyond, 0.7 * kind.throughput_rps, 100.0)
    assert found.unserved_rps["vision"] == pytest.approx(100.0 - served)


def test_load_on_a_kind_that_misses_the_latency_rule_is_unserved() -> None:
    problem = pose()
    kind = kind_of(problem, "v0", "7g.40gb")
    late = replace(kind, latency_s=0.51 * 0.15)
    assert score(problem, Configuration({kind: 1}, {kind: 100.0})).unserved_rps["vision"] == 0
    assert score(problem, Configuration({late: 1}, {late: 100.0})).unserved_rps["vision"] == 100


def test_slices_that_do_not_fit_are_refused() -> None:
    problem = pose()
    kind = kind_of(problem, "v0", "7g.40gb")
    with pytest.raises(FailedPrecondition, match="fit"):
        score(problem, Configuration({kind: 3}, {kind: 100.0}))


def test_parked_gpus_draw_nothing() -> None:
    """With `park_idle_gpus` only the fewest GPUs that hold the slices count."""
    kind = kind_of(pose(), "v0", "7g.40gb")
    configuration = Configuration({kind: 1}, {kind: 100.0})
    awake = score(pose(), configuration)
    parked = score(pose(Objective(park_idle_gpus=True)), configuration)
    assert (awake.gpus, parked.gpus) == (2, 1)
    assert awake.power_w - parked.power_w == pytest.approx(29.0)
    assert parked.objective > awake.objective


def test_power_ends_where_throughput_ends() -> None:
    """Twice the load that segments can take draws no more than they can draw."""
    problem = pose()
    kind = kind_of(problem, "v3", "3g.20gb")
    full = score(problem, Configuration({kind: 1}, {kind: kind.throughput_rps}))
    double = score(problem, Configuration({kind: 1}, {kind: 2 * kind.throughput_rps}))
    assert full.power_w == pytest.approx(double.power_w)
    assert double.latency_s["vision"] == math.inf


def test_missing_the_accuracy_floor_is_a_violation_by_as_much() -> None:
    """Half the load on 78.4, half on 84.6, floor 0.98: short by 0.98 - mean / 84.6."""
    problem = pose(Objective(accuracy_floor=0.98))
    small, large = kind_of(problem, "v0", "3g.20gb"), kind_of(problem, "v3", "7g.40gb")
    mixed = Configuration({small: 1, large: 1}, {small: 50.0, large: 50.0})
    found = score(problem, mixed)
    assert found.unserved_rps["vision"] == 0
    assert found.floor_violation == pytest.approx(0.98 - (78.4 + 84.6) / 2 / 84.6)
    best = score(problem, Configuration({large: 2}, {large: 100.0}))
    assert best.floor_violation == 0


def test_only_what_is_new_costs_reconfiguration() -> None:
    """Prices are per started segment and created slice, over the number of GPUs."""
    objective = Objective(switch_price=4.0, layout_price=6.0)
    bare = pose(objective)
    kind, other = kind_of(bare, "v0", "3g.20gb"), kind_of(bare, "v1", "3g.20gb")
    placement = Placement("3g.20gb", 0)
    gpus = (replace(GPUS[0], slices=(placement,)), GPUS[1])
    running = Segment("s", kind, "node-0", gpus[0].uuid, placement, 1.0)
    problem = replace(bare, gpus=gpus, running=(running,))

    def price(segments: dict[SegmentKind, int]) -> float:
        load = dict.fromkeys(segments, 100.0 / len(segments))
        return score(problem, Configuration(segments, load)).reconfiguration

    assert price({kind: 1}) == 0
    assert price({other: 1}) == pytest.approx(4.0 / 2)
    assert price({kind: 2}) == pytest.approx((4.0 + 6.0) / 2)
    assert price({kind: 1, other: 1}) == pytest.approx((4.0 + 6.0) / 2)
    first = replace(problem, running=())
    assert score(first, Configuration({kind: 2}, {kind: 100.0})).reconfiguration == 0


def test_worth_serves_first_then_keeps_the_floor_then_optimises() -> None:
    def found(unserved: float, violation: float, objective: float) -> Score:
        refused = {"m": unserved}
        return Score(refused, objective, {}, {}, 0, 0, 0, violation, refused_rps=unserved)

    ranked = [found(0, 0, 1), found(0, 0, -50), found(0, 0.1, 99), found(1, 0, 99)]
    assert sorted(ranked, key=lambda each: each.worth, reverse=True) == ranked


def test_a_problem_without_demand_scores_zero() -> None:
    """No load, no reference: nothing to gain and nothing to divide by."""
    problem = fleets.problem(GPUS, [fleets.model(demand_rps=0.0)])
    found = score(problem, Configuration({}, {}))
    assert found.objective == 0
    assert found.power_w == 58


def test_a_rare_model_below_the_floor_is_named() -> None:
    """However few requests it has."""
    objective = Objective(accuracy_floor=0.95)
    models = [fleets.model("often", demand_rps=1000.0), fleets.model("rare", demand_rps=1e-4)]
    problem = fleets.problem(GPUS, models, objective)
    kinds = {(k.model, k.variant, k.profile): k for k in problem.catalog}
    best, poor = kinds["often", "v3", "7g.40gb"], kinds["rare", "v0", "1g.5gb"]
    found = score(problem, Configuration({best: 1, poor: 1}, {best: 1000.0, poor: 1e-4}))
    sentences = [each.sentence for each in shortfalls(problem, found) if "floor" in each.sentence]

    assert found.floor_violation == pytest.approx(0.95 - 78.4 / 84.6)
    assert sentences == [
        "accuracy: the floor of 95.0% of the best variants' is missed by 2.33% (rare)"
    ]

"""The exact strategy: each goal by itself, clocks, overload, and input that nothing can satisfy."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import chain, combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Goals, InfAdapter, Objective
from services.planner.core.model import Configuration, Pool, Segment, SegmentKind
from services.planner.core.placement.placement import place
from services.planner.core.problem import catalog
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import Prices, prices, worthwhile
from services.planner.core.problem.score import score
from services.planner.core.solver import highs
from services.planner.core.strategies.exact import candidates, exact
from services.planner.core.strategies.exact_program import FEW_GPUS, Formulation
from tests.support.examples import examples
from tests.support.planner import fleets

FEWEST = Objective(goals=Goals(clover=0, fewest_gpus=1), max_utilisation=1.0, latency_rule="batch")


# ---- ParvaGPU's goal -----------------------------------------------------------------------------


def test_equally_many_gpus_take_fewer_compute_slices() -> None:
    """One request per second needs one GPU in any way, and one compute slice of it."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(demand_rps=1.0)], FEWEST
    )
    judged = score(problem, exact(problem))
    assert (judged.gpus_in_use, judged.gpcs, judged.objective) == (1, 1, -50.0)


# ---- InfAdapter's goal ---------------------------------------------------------------------------


def infadapter(loading: float) -> Objective:
    return Objective(
        goals=Goals(clover=0, infadapter=1),
        infadapter=InfAdapter(accuracy=1.0, resources=0.1, loading=loading),
        max_utilisation=1.0,
    )


def test_the_value_is_infadapters_equation() -> None:
    """By hand: alpha * AA - (beta * RC + gamma * LC); what runs already is not loaded."""
    model = fleets.model(demand_rps=100.0, load_s=(1.0, 2.0, 4.0, 8.0))
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), [model], infadapter(0.01))
    small, large = (
        next(k for k in problem.catalog if (k.variant, k.profile) == (name, "3g.20gb"))
        for name in ("v0", "v3")
    )
    found = Configuration({small: 1, large: 1}, {small: 60.0, large: 40.0})
    accuracy = 0.6 * 78.4 / 84.6 + 0.4
    value = 100 * (accuracy - (0.1 * 6 / 14 + 0.01 * 8.0))
    assert score(problem, found).objective == pytest.approx(value)
    assert score(problem, found).loading_s == 8.0
    gpu = problem.gpus[0]
    runs = Segment("s", large, gpu.node, gpu.uuid, Placement("3g.20gb", 0), 1.0)
    again = score(replace(problem, running=(runs,)), found)
    assert again.loading_s == 1.0


def test_a_price_on_loading_keeps_a_variant_that_runs() -> None:
    """A better variant is loaded, unless that takes longer than it is worth."""
    model = fleets.model(demand_rps=10.0, load_s=(5.0,) * 4)
    pool = fleets.pool()
    gpus = fleets.fleet((pool, 2))

    def chosen(loading: float) -> set[str]:
        problem = fleets.problem(gpus, [model], infadapter(loading))
        kind = next(kind for kind in problem.catalog if kind.variant == "v1")
        runs = Segment("s", kind, "node-0", gpus[0].uuid, Placement(kind.profile, 0), 1.0)
        return {each.variant for each in exact(replace(problem, running=(runs,))).segments}

    assert "v1" not in chosen(0.0)
    assert chosen(1.0) == {"v1"}


# ---- clocks --------------------------------------------------------------------------------------


def test_a_lower_clock_saves_energy_where_time_allows() -> None:
    """Far from its SLO, a model runs at the clock of least energy, and the plan is better."""
    model = fleets.model(demand_rps=50.0, slo_s=2.0)
    objective = Objective(carbon_weight=1.0, park_idle_gpus=True)
    gpus = fleets.fleet((fleets.pool(), 2))
    full = fleets.problem(gpus, [model], objective)
    free = fleets.problem(gpus, [model], objective, clock_ratios=(1.0, 0.7))
    at_full, at_choice = score(full, exact(full)), score(free, exact(free))
    assert {kind.clock_mhz for kind in exact(free).segments} == {round(0.7 * 1410)}
    assert at_choice.objective > at_full.objective
    assert at_choice.active_power_w < at_full.active_power_w


def test_segments_of_two_clocks_need_two_gpus() -> None:
    """Two halves fit on one GPU, unless one of them needs a clock of its own."""
    models = [
        fleets.model("patient", gmacs=(5.7,), accuracies=(80.0,), demand_rps=20.0, slo_s=2.0),
        fleets.model("hurried", gmacs=(5.7,), accuracies=(80.0,), demand_rps=20.0, slo_s=0.04),
    ]
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 1)),
        models,
        Objective(carbon_weight=1.0),
        clock_ratios=(1.0, 0.15),
    )
    patient = {k.clock_mhz for k in problem.catalog if k.model == "patient"}
    hurried = {k.clock_mhz for k in problem.catalog if k.model == "hurried"}
    assert patient == {0, 212}
    assert hurried == {0}
    found = exact(problem)
    assert score(problem, found).shortage == (0, 0, 0, 0)
    assert {kind.clock_mhz for kind in found.segments} == {0}


# ---- overload and bad input ----------------------------------------------------------------------


def test_overload_starves_no_model() -> None:
    """The sum alone would give all to the light model, whose requests cost a tenth."""
    models = [
        fleets.model("light", gmacs=(1.0,), accuracies=(70.0,), demand_rps=100_000.0),
        fleets.model("heavy", gmacs=(10.0,), accuracies=(80.0,), demand_rps=10_000.0),
    ]
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), models)
    unserved_rps = score(problem, exact(problem)).unserved_rps
    light, heavy = unserved_rps["light"] / 100_000.0, unserved_rps["heavy"] / 10_000.0
    assert max(light, heavy) < 0.9
    assert abs(light - heavy) < 0.1


def test_a_model_that_nothing_can_serve_does_not_spoil_the_others_shares() -> None:
    """The model is named as unserved; the worst share is among those that can be served."""
    impossible = fleets.model("impossible", slo_s=1e-6, demand_rps=5.0)
    models = [
        impossible,
        fleets.model("light", gmacs=(1.0,), accuracies=(70.0,), demand_rps=20_000.0),
        fleets.model("heavy", gmacs=(10.0,), accuracies=(80.0,), demand_rps=2_000.0),
    ]
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), models)
    judged = score(problem, exact(problem))
    assert judged.unserved_rps["impossible"] == 5.0
    assert judged.unserved_rps["heavy"] < 2_000.0
    assert judged.worst_unserved < 0.9
    only = fleets.problem(problem.gpus, [impossible])
    assert exact(only) == Configuration({}, {}, gap=0.0)


def test_a_floor_that_no_plan_can_keep_is_missed_by_as_little_as_possible() -> None:
    """The most accurate variant misses the SLO: the next one serves, and the miss is named."""
    model = fleets.model(demand_rps=10.0, slo_s=0.04)
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [model], Objective(accuracy_floor=1.0, carbon_weight=1.0)
    )
    best = max(kind.accuracy for kind in problem.catalog)
    assert best < model.best.accuracy
    judged = score(problem, exact(problem))
    assert judged.accuracy["vision"] == pytest.approx(best)
    assert judged.floor_violation == pytest.approx(1.0 - best / model.best.accuracy)


def test_a_rare_model_keeps_its_accuracy_where_another_is_overloaded() -> None:
    """One request in a million: a tolerance for all models together hides it."""
    often = fleets.model("often", demand_rps=1e6, slo_s=0.1)
    rare = fleets.model("rare", demand_rps=1.0, slo_s=0.1)
    gpus = fleets.fleet((fleets.pool(), FEW_GPUS + 8))
    problem = fleets.problem(gpus, [often, rare], Objective(accuracy_floor=0.97))
    judged = score(problem, exact(problem))

    assert judged.unserved_rps["often"] > 0
    assert judged.accuracy["rare"] >= 0.97 * rare.best.accuracy * (1 - 1e-6)


def test_segments_of_a_batch_size_that_is_no_longer_allowed_are_replaced() -> None:
    """The price of a change does not keep them."""
    gpus, model = fleets.fleet((fleets.pool(), 2)), fleets.model(demand_rps=500.0)
    dear = Objective(switch_price=5.0)
    before = fleets.problem(gpus, [model], dear, batch_sizes=(8, 32))
    running = place(before, exact(before), iter(map(str, range(100))).__next__)
    now = fleets.problem(
        fleets.with_plan(gpus, running), [model], dear, running=running, batch_sizes=(4,)
    )
    assert {kind.batch_size for kind in exact(now).segments} == {4}


def test_time_that_ends_leaves_the_best_plan_so_far_and_what_is_proven_of_it() -> None:
    """Twenty models on a hundred GPUs, fewest GPUs: whatever the time, all is served."""
    models = [
        fleets.model(f"model-{index}", demand_rps=150.0 + 37.0 * index, slo_s=0.1)
        for index in range(20)
    ]
    gpus = fleets.fleet((fleets.pool(), 60), (fleets.pool("a30", zone="GB"), 40))
    problem = fleets.problem(gpus, models, everything(), time_limit_s=0.3)
    found = exact(problem)
    assert score(problem, found).shortage == (0, 0, 0, 0)
    assert found.gap is None or found.gap >= 0, "how small it is by then is the machine's affair"


def everything() -> Objective:
    return Objective(goals=Goals(clover=1, fewest_gpus=1, infadapter=1))


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_what_is_proven_on_a_large_fleet_holds(
    monkeypatch: pytest.MonkeyPatch, load: float
) -> None:
    """The relaxation rounded up fits, and the optimum is not above what is proven of it."""
    monkeypatch.setattr(highs, "LARGE", 0)
    gpus = fleets.fleet((fleets.pool(), 33))
    models = [fleets.model(f"m{at}", demand_rps=33 * 60 * load, slo_s=0.2) for at in range(2)]
    problem = fleets.problem(gpus, models, Objective(carbon_weight=0.3), batch_sizes=(8,))
    found = exact(problem)
    monkeypatch.setattr(import_module(exact.__module__), "FEW_GPUS", len(gpus))
    best = score(problem, exact(problem)).objective
    judged = score(problem, found)
    assert found.gap is not None
    assert judged.shortage == (0, 0, 0, 0)
    assert judged.objective <= best + 1e-6
    assert best <= judged.objective + found.gap * abs(judged.objective) + 1e-6


# ---- candidates ----------------------------------------------------------------------------------


@examples(0.4)
@given(goals=st.sampled_from([Goals(), Goals(clover=0, infadapter=1)]), seed=st.integers(0, 3))
def test_what_is_left_out_has_a_better_candidate_in_its_place(goals: Goals, seed: int) -> None:
    """Same variant, slice and clock; given no less, for no more energy where that counts."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 1)),
        [fleets.model(slo_s=0.05 + 0.1 * seed)],
        Objective(goals=goals),
        clock_ratios=(1.0, 0.6),
    )
    known = prices(problem)
    kept = list(candidates(known))
    for kind in problem.catalog:
        place_of = (kind.variant, kind.profile, kind.clock_mhz)
        assert any(
            (other.variant, other.profile, other.clock_mhz) == place_of
            and known.usable_rps(other) >= known.usable_rps(kind)
            and (other.energy_j <= kind.energy_j or not known.energy_matters)
            for other in kept
        )


@examples(0.2)
@given(demand_rps=st.floats(1.0, 400.0), slo_s=st.floats(0.05, 0.4))
def test_worthwhile_kinds_are_those_that_nothing_beats(demand_rps: float, slo_s: float) -> None:
    """Few kinds of a place are compared; the result is the same as with all of them."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 1)), [fleets.model(demand_rps=demand_rps, slo_s=slo_s)]
    )
    known = prices(problem)
    place = [
        kind
        for kind in problem.catalog
        if (kind.variant, kind.profile) == (problem.catalog[0].variant, problem.catalog[0].profile)
    ]
    kept = worthwhile(known, place)
    worth = {kind: (known.usable_rps(kind), -kind.energy_j) for kind in place}
    for kind in place:
        if worth[kind][0] > 0:
            assert any(
                worth[other][0] >= worth[kind][0] and worth[other][1] >= worth[kind][1]
                for other in kept
            )
    for one, other in pairwise(kept):
        assert worth[one][0] > worth[other][0]
        assert worth[one][1] < worth[other][1]
    fastest = worthwhile(known, place, fastest_only=True)
    assert fastest == kept[:1]


def test_kinds_of_pools_that_the_fleet_has_not_are_no_candidates() -> None:
    """A catalog may be older than the fleet."""
    here, gone = fleets.pool(), fleets.pool("a30", zone="GB")
    model = fleets.model()
    both = catalog.build([model], (here, gone), Objective(), (1, 8), 1)
    problem = replace(fleets.problem(fleets.fleet((here, 1)), [model]), catalog=both)
    assert {kind.pool for kind in candidates(prices(problem))} == {here}


def test_equal_input_gives_equal_plans_whatever_the_goals() -> None:
    pool: Pool = fleets.pool()
    for goals in (Goals(), Goals(clover=0, fewest_gpus=1), Goals(clover=1, infadapter=1)):
        problem = fleets.problem(
            fleets.fleet((pool, 3)), [fleets.model(demand_rps=900.0)], Objective(goals=goals)
        )
        assert exact(problem) == exact(problem)


# ---- segments of several kinds -------------------------------------------------------------------


def test_a_mixture_that_is_late_is_excluded_and_the_rest_is_solved() -> None:
    """Two kinds in time alone are late together: the best others are found, and proven to be."""
    pool = fleets.pool("a30", intensity=200.0)
    model = fleets.model(
        gmacs=(14.983, 27.927, 33.819), accuracies=(70, 75, 80), demand_rps=65.83, slo_s=0.17716
    )
    objective = Objective(carbon_weight=0.1, max_utilisation=0.9, park_idle_gpus=True)
    problem = fleets.problem(fleets.fleet((pool, 4)), [model], objective)
    kinds = catalog.build([model], [pool], objective, (1,), max_processes=1)
    problem = replace(problem, catalog=kinds, batch_sizes=(1,))
    known = prices(problem)
    kinds = tuple(candidates(known))
    relaxed = Formulation(known, kinds).solve(time_limit_s=10, tolerance=0.0)
    assert relaxed is not None
    assert score(problem, relaxed).shortage[2] > 0

    found = exact(problem)

    assert found.gap == 0.0
    judged = score(problem, found)
    assert not any(judged.shortage)
    assert judged.objective == pytest.approx(best_by_hand(known, kinds), abs=1e-6)


def best_by_hand(known: Prices, kinds: Sequence[SegmentKind]) -> float:
    """Return the best objective of all choices of up to five segments, one by one."""
    best = -math.inf
    (model,) = known.problem.models
    chosen = (combinations_with_replacement(kinds, size) for size in range(1, 6))
    for segments in map(Counter, chain.from_iterable(chosen)):
        most_rps = sum(kind.throughput_rps * n for kind, n in segments.items())
        if most_rps * known.problem.objective.max_utilisation < model.demand_rps:
            continue  # some of the demand is not served
        if gpus_needed(known.problem, segments) is None:
            continue
        judged = score(known.problem, with_load(known, segments), known)
        if not any(judged.shortage):
            best = max(best, judged.objective)
    return best

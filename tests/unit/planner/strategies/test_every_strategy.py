"""Invariants of every strategy, and the optimality that `exact` promises."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.config import Goals, InfAdapter, Objective
from services.kit.hardware.gpu_types import load
from services.kit.mig import WHOLE, Geometry
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import BatchCost
from services.planner.core.model import GpuType, Model, Pool, Problem, Score, Variant
from services.planner.core.placement.placement import place
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.annealing import accept
from services.planner.core.strategies.candidates import energy
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.exact_program import ENERGY_GAP
from tests.support.examples import examples
from tests.support.planner import fleets

TOLERANCE = 1e-6
ENERGY = 5
"""Position of energy in a worth; the last tie of `fewest_gpus`."""

models = st.builds(
    lambda name, works, accuracies, demand, slo, load_s: fleets.model(
        name,
        gmacs=sorted(works),
        accuracies=sorted(accuracies),
        demand_rps=demand,
        slo_s=slo,
        load_s=load_s,
    ),
    st.just("model"),
    st.lists(st.floats(0.2, 60.0), min_size=2, max_size=2),
    st.lists(st.floats(40.0, 95.0), min_size=2, max_size=2),
    st.floats(1.0, 20_000.0),
    st.floats(0.005, 1.0),
    st.lists(st.floats(0.0, 60.0), min_size=2, max_size=2),
)
pools = st.builds(
    lambda name, intensity, zone, pue: fleets.pool(name, intensity=intensity, zone=zone, pue=pue),
    st.sampled_from(["a100-40gb", "a30", "t4"]),
    st.floats(5.0, 900.0),
    st.sampled_from(["FR", "PL"]),
    st.sampled_from([1.0, 1.6]),
)
GOALS = (
    Goals(),
    Goals(clover=0, fewest_gpus=1),
    Goals(clover=0, infadapter=1),
    Goals(clover=1, fewest_gpus=0.3),
    Goals(clover=0, fewest_gpus=2, infadapter=1),
    Goals(clover=1, fewest_gpus=1, infadapter=1),
)
objectives = st.builds(
    Objective,
    goals=st.sampled_from(GOALS),
    infadapter=st.builds(
        InfAdapter,
        accuracy=st.sampled_from([1.0, 0.0]),
        resources=st.sampled_from([0.05, 0.5]),
        loading=st.sampled_from([0.0, 0.001, 0.05]),
    ),
    carbon_weight=st.floats(0.0, 1.0),
    accuracy_floor=st.sampled_from([0.0, 0.0, 0.9, 0.99, 1.0]),
    max_utilisation=st.sampled_from([0.5, 0.7, 1.0]),
    switch_price=st.sampled_from([0.0, 0.0, 0.5, 20.0]),
    layout_price=st.sampled_from([0.0, 0.0, 2.0]),
    park_idle_gpus=st.booleans(),
)


class Case:
    """A problem that a failing test can print."""

    def __init__(self, problem: Problem, story: str) -> None:
        self.problem = problem
        self._story = story

    def __repr__(self) -> str:
        return self._story


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small fleets of mixed pools, one or two models, from idle to overload, with a past or not."""
    found = draw(st.lists(st.tuples(pools, st.integers(1, 2)), min_size=1, max_size=2))
    served = draw(st.lists(models, min_size=1, max_size=2))
    gpus = fleets.fleet(*found)
    problem = fleets.problem(
        gpus,
        [replace(model, name=f"model-{index}") for index, model in enumerate(served)],
        draw(objectives),
        batch_sizes=(1, 4, 16),
        max_processes=2,
        clock_ratios=draw(st.sampled_from([(1.0,), (1.0, 0.6)])),
        seed=draw(st.integers(0, 5)),
    )
    past = draw(st.sampled_from(["none", *sorted(REGISTRY)]))
    if past != "none":
        before = REGISTRY[past](replace(problem, seed=9))
        ids = iter(range(1000))
        segments = place(problem, before, lambda: f"s{next(ids)}")
        problem = replace(problem, gpus=fleets.with_plan(gpus, segments), running=segments)
    story = [
        *(f"{n} x {p.type.name} {p.zone} {p.pue} {p.intensity_gco2e_per_kwh}" for p, n in found),
        *(
            f"{m.demand_rps}/s in {m.slo_latency_s} s by "
            + ", ".join(f"{v.accuracy} {v.profile}" for v in m.variants)
            for m in served
        ),
        str(problem.objective),
        f"past {past}, seed {problem.seed}",
    ]
    return Case(problem, "; ".join(story))


def no_worse(one: Score, other: Score) -> bool:
    """Compare worths in order of importance, up to rounding; energy ties up to what is promised."""
    for position, (mine, theirs) in enumerate(zip(one.worth, other.worth, strict=True)):
        tolerance = ENERGY_GAP if position == ENERGY else TOLERANCE
        if abs(mine - theirs) > tolerance * max(1.0, abs(theirs)):
            return mine > theirs
    return True


@examples(0.24)
@given(cases())
def test_exact_is_never_worse_than_any_other_strategy(case: Case) -> None:
    problem = case.problem
    best = exact(problem)
    mine = score(problem, best)
    for name, strategy in REGISTRY.items():
        theirs = score(problem, strategy(problem))
        assert no_worse(mine, theirs), f"{name}: {theirs.worth} beats {mine.worth}"


@examples(0.3)
@given(cases(), st.sampled_from(sorted(REGISTRY)))
def test_every_strategy_answers_with_something_placeable_and_repeats_itself(
    case: Case, name: str
) -> None:
    """Slices fit, loads go to what exists and sum to the demand or less, twice the same."""
    problem, strategy = case.problem, REGISTRY[name]
    found = strategy(problem)
    assert gpus_needed(problem, found.segments) is not None
    assert set(found.load_rps) <= set(found.segments)
    assert all(count > 0 for count in found.segments.values())
    for model in problem.models:
        load_rps = sum(rps for kind, rps in found.load_rps.items() if kind.model == model.name)
        assert load_rps <= model.demand_rps * (1 + 1e-6)
    again = strategy(problem)
    assert dict(again.segments) == dict(found.segments)
    assert dict(again.load_rps) == dict(found.load_rps)


@examples(0.3)
@given(model=models, gpus=st.integers(1, 2), objective=objectives, clocks=st.booleans())
def test_exact_equals_trying_everything(
    model: Model, gpus: int, objective: Objective, clocks: bool
) -> None:
    """On GPUs that can be halved, against all counts of all kinds with all splits that matter.

    Loads are split in order of worth; with a floor, any vertex of the splits may be best, so that
    only the bound is compared. So are ties: here load beyond capacity is sent all the same, and
    takes energy.
    """
    problem = fleets.problem(
        fleets.fleet((halvable(), gpus)),
        [model],
        objective,
        batch_sizes=(1, 8),
        max_processes=1,
        clock_ratios=(1.0, 0.7) if clocks else (1.0,),
    )
    known = prices(problem)
    best: Score | None = None
    for size in range(2 * gpus + 1):
        for chosen in combinations_with_replacement(problem.catalog, size):
            segments = Counter(chosen)
            if gpus_needed(problem, segments) is not None:
                found = score(problem, with_load(known, segments), known)
                best = found if best is None or found.worth > best.worth else best
    mine = score(problem, exact(problem))
    assert no_worse(mine, cast("Score", best))
    if not objective.accuracy_floor:
        assert no_worse(replace(cast("Score", best), ties=()), replace(mine, ties=()))


def halvable() -> Pool:
    """A small invented GPU type, so that everything can be tried."""
    memory = 12 * 2**30
    kinds = (
        SliceProfile("1g.12gb", 0, 1, 1, (0, 1), 2, 28, memory),
        SliceProfile("2g.24gb", 0, 2, 2, (0,), 1, 56, 2 * memory),
    )
    return Pool(
        GpuType(
            "a30",
            Geometry(2, kinds),
            56,
            30.0,
            30.0,
            165.0,
            1440,
            performance=load("a30").performance,
        ),
        "GB",
        1.2,
        250.0,
    )


def test_exact_proves_its_answer_on_small_fleets() -> None:
    problem = fleets.problem(fleets.fleet((fleets.pool(), 4)), [fleets.model()])
    assert exact(problem).gap == 0
    assert REGISTRY["annealing"](problem).gap is None


def test_exact_is_never_worse_on_a_large_fleet_where_the_proof_may_stop_early() -> None:
    """Above 32 GPUs the gap may be up to 0.1 %, and no other strategy finds more."""
    models = [  # with all four variants, the oracle would try 22,000 configurations
        fleets.model(
            f"model-{index}",
            gmacs=(1.9, 38.0),
            accuracies=(81.5, 84.6),
            demand_rps=20_000.0 + 14_000.0 * index,
        )
        for index in range(2)
    ]
    gpus = fleets.fleet((fleets.pool(), 22), (fleets.pool("a30", zone="FR", intensity=50), 11))
    problem = fleets.problem(gpus, models, Objective(carbon_weight=0.2, park_idle_gpus=True))
    found = exact(problem)
    assert found.gap is not None
    assert found.gap <= 1e-3
    for strategy in REGISTRY.values():
        assert no_worse(score(problem, found), score(problem, strategy(problem)))


def test_exact_finds_the_optimum_where_presolve_misled_the_solver() -> None:
    """With its aggregator, HiGHS 1.15.1 calls 0.377 of a demand unserved optimal here."""
    fleet = fleets.fleet((fleets.pool("a30", zone="FR"), 1), (fleets.pool("t4", zone="FR"), 1))
    light = fleets.model(
        "light", gmacs=(0.21875, 1.0), accuracies=(40.0, 40.0), demand_rps=14343.0, slo_s=1.0
    )
    heavy = fleets.model(
        "heavy", gmacs=(0.5, 20.0), accuracies=(40.0, 40.0), demand_rps=12764.0, slo_s=0.5
    )
    problem = fleets.problem(
        fleet,
        [light, heavy],
        Objective(carbon_weight=0.0, max_utilisation=0.5),
        batch_sizes=(1, 4, 16),
        max_processes=2,
        clock_ratios=(1.0, 0.6),
    )

    assert -score(problem, exact(problem)).worth[1] == pytest.approx(0.2538, abs=1e-4)


def test_exact_degrades_when_there_is_too_much_load() -> None:
    """Ten times what the fleet can serve: all of the fleet serves, the rest is named."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(demand_rps=1e6)], Objective()
    )
    found = exact(problem)
    judged = score(problem, found)
    assert 0 < judged.unserved_rps["vision"] < 1e6
    fastest = max(kind.throughput_rps for kind in problem.catalog)
    assert 1e6 - judged.unserved_rps["vision"] >= 0.7 * fastest


def test_no_time_at_all_still_gives_an_answer() -> None:
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), [fleets.model()], time_limit_s=1e-9)
    found = exact(problem)
    assert sum(score(problem, found).unserved_rps.values()) == 0


def test_a_fleet_without_gpus_leaves_all_unserved() -> None:
    problem = fleets.problem((), [fleets.model(demand_rps=10.0)])
    for strategy in REGISTRY.values():
        found = strategy(problem)
        assert not found.segments
        assert score(problem, found).unserved_rps == {"vision": 10.0}


def test_cleaner_grid_means_more_accurate_plans() -> None:
    """CLOVER's Figure 6: low intensity favours quality, high intensity favours carbon."""

    def accuracy(intensity: float) -> float:
        pool = fleets.pool(intensity=intensity)
        problem = fleets.problem(
            fleets.fleet((pool, 10)),
            [fleets.model(demand_rps=3000.0)],
            Objective(carbon_weight=0.1),
        )
        return score(problem, exact(problem)).accuracy["vision"]

    along = [accuracy(intensity) for intensity in (10.0, 100.0, 300.0, 900.0)]
    assert along == sorted(along, reverse=True)
    assert along[0] > along[-1]


def test_the_accuracy_floor_is_kept_where_it_can_be() -> None:
    pool = fleets.pool(intensity=900.0)
    problem = fleets.problem(
        fleets.fleet((pool, 4)),
        [fleets.model(demand_rps=1000.0)],
        Objective(carbon_weight=1.0, accuracy_floor=0.97),
    )
    judged = score(problem, exact(problem))
    assert judged.floor_violation == pytest.approx(0, abs=1e-9)
    assert judged.accuracy["vision"] == pytest.approx(0.97 * 84.6, rel=1e-4)


def test_a_price_on_changes_keeps_what_runs() -> None:
    """The grid turns dirty: other segments start, unless that costs more than it gains."""

    def started(switch_price: float) -> float:
        objective = Objective(carbon_weight=0.1, switch_price=switch_price)
        model = fleets.model(demand_rps=3000.0)
        clean, dirty = fleets.pool(intensity=30.0), fleets.pool(intensity=600.0)
        before = fleets.problem(fleets.fleet((clean, 4)), [model], objective)
        ids = iter(range(1000))
        running = place(before, exact(before), lambda: f"s{next(ids)}")
        moved = tuple(
            replace(segment, kind=replace(segment.kind, pool=dirty)) for segment in running
        )
        gpus = fleets.with_plan(fleets.fleet((dirty, 4)), running)
        after = fleets.problem(gpus, [model], objective, running=moved)
        kept = {segment.kind for segment in moved}
        return sum(count for kind, count in exact(after).segments.items() if kind not in kept)

    assert started(0.0) > 0
    assert started(1000.0) == 0


def test_base_hosts_the_best_variant_on_every_gpu_exclusively() -> None:
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 3), (fleets.pool("t4", zone="GB"), 2)), [fleets.model()]
    )
    found = REGISTRY["base"](problem)
    assert {kind.variant for kind in found.segments} == {"v3"}
    hosted = {kind.profile: count for kind, count in found.segments.items()}
    assert hosted == {"7g.40gb": 3, WHOLE: 2}


def test_base_counts_as_unserved_where_it_misses_the_slo() -> None:
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(slo_s=0.02, demand_rps=10.0)]
    )
    found = REGISTRY["base"](problem)
    assert sum(found.segments.values()) == 2
    assert score(problem, found).unserved_rps == {"vision": 10.0}


def test_co2opt_hosts_the_smallest_variant_on_the_finest_partition() -> None:
    problem = fleets.problem(fleets.fleet((fleets.pool(), 3)), [fleets.model()])
    found = REGISTRY["co2opt"](problem)
    assert {(kind.variant, kind.profile) for kind in found.segments} == {("v0", "1g.5gb")}
    assert sum(found.segments.values()) == 21


@dataclass(frozen=True)
class Slow(AnalyticProfile):
    """A network that takes little energy and many times its time."""

    def batch(self, *args: Any, **settings: Any) -> BatchCost | None:
        found = AnalyticProfile.batch(self, *args, **settings)
        return found and BatchCost(500 * found.latency_s, found.energy_j)


def test_co2opt_hosts_the_smallest_variant_that_meets_the_sla() -> None:
    """One with less energy that would be late everywhere is passed over; alone, it runs late."""
    usual = fleets.model(demand_rps=50.0, slo_s=0.3)
    late = Variant("late", 70.0, Slow(0.3, memory_mib=1024))
    gpus = fleets.fleet((fleets.pool(), 3))
    both = fleets.problem(gpus, [replace(usual, variants=(late, *usual.variants))])
    assert {kind.variant for kind in REGISTRY["co2opt"](both).segments} == {"v0"}
    alone = fleets.problem(gpus, [replace(usual, variants=(late,))])
    found = REGISTRY["co2opt"](alone)
    assert {kind.variant for kind in found.segments} == {"late"}
    assert score(alone, found).unserved_rps["vision"] == 50.0


def test_the_energy_of_annealing_never_rewards_a_violation() -> None:
    """Eq. 6 as printed does, where f < 0; repaired, a slower candidate is never preferred."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 1)), [fleets.model(slo_s=0.1, demand_rps=10.0)]
    )
    for f in (-20.0, -0.1, 0.0, 0.1, 20.0):
        fast, slow, failing = (
            energy(Score({"vision": lost}, f, {}, {"vision": latency_s}, 0, 0, 0), problem)
            for lost, latency_s in ((0.0, 0.09), (0.0, 0.2), (5.0, float("inf")))
        )
        assert fast == -f
        assert fast < slow <= failing
    published = energy(Score({}, 20.0, {}, {"vision": 0.2}, 0, 0, 0), problem)
    assert published == pytest.approx(-20.0 * 0.5)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0.1, 1.0), st.floats(0, 1, exclude_max=True))
def test_annealing_accepts_every_better_candidate_and_worse_ones_by_temperature(
    now: float, then: float, temperature: float, drawn: float
) -> None:
    if then <= now:
        assert accept(now, then, temperature, drawn)
    elif not accept(now, then, temperature, drawn):
        assert not accept(now, then, temperature / 2, drawn)

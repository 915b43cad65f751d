"""CLOVER's annealing."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective
from services.planner.core.model import Segment, SegmentKind
from services.planner.core.placement.placement import place
from services.planner.core.problem.configuration_graph import NEIGHBOURHOOD, edit_distance
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.score import score
from services.planner.core.strategies.annealing import (
    MIN_EVALUATIONS,
    PAPER,
    THOROUGH,
    annealing,
    neighbour,
    search,
)
from services.planner.core.strategies.candidates import distinct, trimmed
from services.planner.core.strategies.exact import exact
from tests.support.examples import examples
from tests.support.planner import fleets

PROBLEM = fleets.problem(fleets.fleet((fleets.pool(), 3)), [fleets.model()])
GAP_POINTS = 0.1
segments = st.dictionaries(st.sampled_from(PROBLEM.catalog), st.integers(1, 2), max_size=3)


@pytest.mark.parametrize("weight", [0.1, 0.5])
def test_the_gap_to_the_optimum_is_small_from_hour_to_hour(weight: float) -> None:
    """Six GPUs, intensities as on a day in California, each search from the last optimum."""
    gpus, ids = fleets.fleet((fleets.pool(), 6)), iter(range(10_000))
    running: tuple[Segment, ...] = ()
    for hour, intensity in enumerate((90.0, 300.0)):
        pool = fleets.pool(intensity=intensity)
        problem = fleets.problem(
            tuple(replace(gpu, pool=pool) for gpu in gpus),
            [fleets.model(demand_rps=1740.0)],
            Objective(carbon_weight=weight),
            running=tuple(replace(each, kind=replace(each.kind, pool=pool)) for each in running),
            seed=hour,
        )
        found = annealing(problem)
        best, mine = score(problem, exact(problem)), score(problem, found)
        assert mine.shortage == best.shortage == (0.0, 0.0, 0.0, 0.0)
        assert best.objective - mine.objective <= GAP_POINTS
        running = place(problem, found, lambda: f"s{next(ids)}")
        gpus = fleets.with_plan(gpus, running)


@given(segments, st.integers(0, 1000))
def test_a_neighbour_is_another_placeable_configuration_within_distance_four(
    chosen: dict[SegmentKind, int], seed: int
) -> None:
    kinds = distinct(PROBLEM)
    center = dict(zip(kinds, chosen.values(), strict=False))
    if gpus_needed(PROBLEM, center) is None:
        return
    found = neighbour(PROBLEM, kinds, center, random.Random(seed))
    assert found is not None
    assert 0 < edit_distance(center, found) <= NEIGHBOURHOOD
    assert gpus_needed(PROBLEM, found) is not None


@examples(0.4)
@given(st.integers(0, 1000))
def test_the_papers_search_ends_five_evaluations_after_its_last_success(seed: int) -> None:
    met = [each.score.worth for each in search(replace(PROBLEM, seed=seed), PAPER)]
    best = met.index(max(met))
    assert len(met) - 1 - best == PAPER.patience


def test_a_search_starts_from_what_runs() -> None:
    ids = iter(range(100))
    running = place(PROBLEM, exact(PROBLEM), lambda: f"s{next(ids)}")
    problem = replace(
        PROBLEM, gpus=fleets.with_plan(PROBLEM.gpus, running), running=running, seed=3
    )
    optimum = score(problem, exact(problem)).objective
    assert score(problem, annealing(problem, PAPER)).objective >= optimum - 1e-6


@pytest.mark.parametrize(("loss", "park"), [(0.002, True), (0.005, False), (0.008, True)])
def test_accuracy_as_a_threshold_is_kept_and_used(loss: float, park: bool) -> None:
    """Carbon alone counts, above the floor (Fig. 14 b): all of the allowed loss turns to carbon."""
    objective = Objective(carbon_weight=1.0, accuracy_floor=1.0 - loss, park_idle_gpus=park)
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 4)), [fleets.model(demand_rps=900.0)], objective
    )
    judged = score(problem, annealing(problem))
    assert judged.shortage == (0.0, 0.0, 0.0, 0.0)
    assert judged.accuracy["vision"] == pytest.approx((1.0 - loss) * 84.6, rel=1e-3)


def test_a_large_fleet_gets_fewer_evaluations_but_always_a_walk() -> None:
    large = fleets.problem(
        fleets.fleet((fleets.pool(), 1000)),
        [fleets.model(f"model-{index}", demand_rps=9000.0) for index in range(20)],
    )
    assert THOROUGH.evaluations_for(PROBLEM) == THOROUGH.evaluations
    assert THOROUGH.evaluations_for(large) == MIN_EVALUATIONS
    met = list(search(large, PAPER))
    assert len(met) == PAPER.patience + 1
    assert max(each.score.worth for each in met) >= met[0].score.worth


def test_a_trimmed_configuration_is_worth_the_same() -> None:
    for met in search(PROBLEM, PAPER):
        small = trimmed(met.configuration)
        assert set(small.segments) == set(small.load_rps)
        assert score(PROBLEM, small).objective == pytest.approx(met.score.objective)

"""CLOVER's ORACLE."""

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.config import Objective
from services.kit.hardware.gpu_types import load
from services.kit.mig import Geometry
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import GpuType, Model, Pool, Problem, Variant
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.oracle import oracle
from tests.support.examples import examples
from tests.support.planner import fleets

GIB = 2**30


def halvable() -> Pool:
    """An invented GPU that is whole or halved."""
    kinds = (
        SliceProfile("1g.12gb", 0, 1, 1, (0, 1), 2, 28, 12 * GIB),
        SliceProfile("2g.24gb", 0, 2, 2, (0,), 1, 56, 24 * GIB),
    )
    return Pool(
        GpuType(
            "a30", Geometry(2, kinds), 56, 30.0, 30.0, 165.0, performance=load("a30").performance
        ),
        "GB",
        1.2,
        250.0,
    )


@examples(0.5)
@given(
    weight=st.floats(0.0, 1.0),
    demand_rps=st.floats(10.0, 1500.0),
    gpus=st.integers(1, 3),
    floor=st.sampled_from([0.0, 0.97]),
)
def test_nothing_uniform_is_better(
    weight: float, demand_rps: float, gpus: int, floor: float
) -> None:
    """Against every variant on the whole GPU and every pair on its halves, on all GPUs alike."""
    problem = fleets.problem(
        fleets.fleet((halvable(), gpus)),
        [fleets.model(gmacs=(0.7, 10.3), accuracies=(78.4, 83.8), demand_rps=demand_rps)],
        Objective(carbon_weight=weight, accuracy_floor=floor),
        batch_sizes=(4,),
        max_processes=1,
    )
    known = prices(problem)
    halves = [kind for kind in problem.catalog if kind.profile == "1g.12gb"]
    wholes = [(kind,) for kind in problem.catalog if kind.profile == "2g.24gb"]
    best = max(
        score(
            problem,
            with_load(known, {kind: gpus * chosen.count(kind) for kind in chosen}),
        ).worth
        for chosen in [*wholes, *combinations_with_replacement(halves, 2)]
    )
    mine = score(problem, oracle(problem)).worth
    assert mine == pytest.approx(best, abs=1e-6)


def test_every_gpu_runs_the_same() -> None:
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 7)), [_two_variants(demand_rps=2000.0)], Objective()
    )
    found = oracle(problem)
    assert found.segments
    assert all(count % 7 == 0 for count in found.segments.values())


def test_models_have_pods_of_their_own_and_pools_differ() -> None:
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 4), (fleets.pool("a30", zone="FR", intensity=40.0), 4)),
        [
            _two_variants("big", demand_rps=800.0),
            fleets.model("small", gmacs=(0.3, 2.0), accuracies=(70.0, 80.0), demand_rps=200.0),
        ],
        Objective(carbon_weight=0.2),
        batch_sizes=(1, 8),
        max_processes=1,
    )
    found, best = score(problem, oracle(problem)), score(problem, exact(problem))
    assert found.shortage == (0.0, 0.0, 0.0, 0.0)
    assert found.objective <= best.objective + 1e-6


def test_parking_takes_as_few_gpus_as_the_load_needs() -> None:
    def powered(park: bool) -> int:
        problem = _light(Objective(carbon_weight=0.9, park_idle_gpus=park))
        return score(problem, oracle(problem)).gpus

    assert powered(park=False) == 6
    assert powered(park=True) == 1


def test_a_model_that_only_large_slices_hold_is_served_beside_idle_ones() -> None:
    """10 GB of memory: slices of 5 GB stay idle, and layouts of nothing else are left out."""
    heavy = AnalyticProfile(1.0, memory_mib=9000.0)
    model = replace(fleets.model(demand_rps=50.0), variants=(Variant("heavy", 80.0, heavy),))
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)),
        [model],
        Objective(park_idle_gpus=True),
        batch_sizes=(1,),
        max_processes=1,
    )
    found = oracle(problem)
    assert score(problem, found).shortage == (0.0, 0.0, 0.0, 0.0)
    assert "1g.5gb" not in {kind.profile for kind in found.segments}


def _two_variants(name: str = "vision", *, demand_rps: float) -> Model:
    """With four of them seven slices are tried with 120 sets of variants instead of 8."""
    return fleets.model(name, gmacs=(1.9, 10.3), accuracies=(81.5, 83.8), demand_rps=demand_rps)


def _light(objective: Objective) -> Problem:
    return fleets.problem(
        fleets.fleet((fleets.pool(), 6)),
        [_two_variants(demand_rps=50.0)],
        objective,
        batch_sizes=(1, 8),
        max_processes=1,
    )

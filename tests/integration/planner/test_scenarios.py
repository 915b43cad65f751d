"""Scenarios of ParvaGPU's kind, from files to plans: made-up ones, and the published six."""

import csv
from pathlib import Path

import pytest

from services.kit.config import Goals
from services.planner.capacity.fleet_sizing import Terms, lay_out, pose
from services.planner.capacity.input_files import read_profiles, read_scenario
from services.planner.core.model import Problem
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.parvagpu.strategy import allocate
from tests.support.paths import MADE_UP, PUBLISHED
from tests.support.planner import fleets

OURS, THEIRS = MADE_UP / "parvagpu", PUBLISHED / "parvagpu"
OPTIMUM = {OURS: (1, 2, 6), THEIRS: (2, 3, 5, 7, 12, 15)}
"""The fewest GPUs, by scenario."""

needs_theirs = pytest.mark.skipif(not THEIRS.is_dir(), reason="no ParvaGPU tables beside the clone")
scenarios = pytest.mark.parametrize(
    ("folder", "number"),
    [pytest.param(OURS, n, id=f"made up {n}") for n in range(1, 4)]
    + [pytest.param(THEIRS, n, id=f"published {n}", marks=needs_theirs) for n in range(1, 7)],
)


def scenario(folder: Path, number: int, terms: Terms) -> Problem:
    profiles = read_profiles(folder / "prof_data", "a100-80gb")
    rates, latencies = folder / "SLO/SLO_req_rate.csv", folder / "SLO/SLO_latency.csv"
    services = read_scenario(rates, latencies, number, tuple(profiles))
    return pose(services, profiles, fleets.gpu_type("a100-80gb"), terms)


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("number", range(1, 4))
def test_every_strategy_serves_a_scenario_that_it_reads_from_files(name: str, number: int) -> None:
    """All demand is met, on layouts that a driver would accept."""
    goals = (
        Goals(clover=0, infadapter=1) if name == "infadapter" else Goals(clover=0, fewest_gpus=1)
    )
    posed = scenario(OURS, number, Terms(goals, gpus=12))

    found = lay_out(posed, REGISTRY[name](posed))

    assert found.score.shortage == (0, 0, 0, 0)
    for layout in found.layouts.values():
        assert not posed.gpus[0].pool.type.geometry.problem(layout)


@scenarios
def test_the_fewest_gpus_are_proven(folder: Path, number: int) -> None:
    """The known optimum, gap 0, all demand met, and placements that a driver would accept."""
    optimum = OPTIMUM[folder][number - 1]
    posed = scenario(folder, number, Terms(gpus=20))

    found = exact(posed)

    assert found.gap == 0
    assert score(posed, found).gpus_in_use == optimum
    assert score(posed, found).shortage == (0, 0, 0, 0)
    placed = lay_out(posed, found)
    assert len(placed.layouts) == optimum
    for layout in placed.layouts.values():
        assert not posed.gpus[0].pool.type.geometry.problem(layout)


@scenarios
@pytest.mark.parametrize("latency_share", [0.5, 0.45], ids=["half", "as in their code"])
def test_the_repaired_heuristic_takes_no_more_gpus_than_the_authors_maps(
    folder: Path, number: int, latency_share: float
) -> None:
    """Our maps are all physically valid, while 31 of theirs are not; ours takes the optimum."""
    found = allocate(scenario(folder, number, Terms(latency_share=latency_share)))
    most = shipped_gpus(number) if folder == THEIRS else OPTIMUM[OURS][number - 1]

    assert not found.unserved_rps
    assert len(found.gpus) <= most
    for each in found.gpus:
        assert not each.gpu.pool.type.geometry.problem(tuple(each.segments))


def shipped_gpus(number: int) -> int:
    path = THEIRS / f"deployment/SLO{number}_ParvaGPU_deploy.csv"
    rows = csv.DictReader(path.read_text().splitlines())
    return len({(row["Num instance"], row["Num GPU"]) for row in rows})


@needs_theirs
def test_without_optimisation_it_takes_as_many_gpus_as_published() -> None:
    """Figure 5's last bars: relocation alone is the paper's, slot for slot."""
    terms = Terms(latency_share=0.45, max_processes=3)
    posed = [scenario(THEIRS, number, terms) for number in range(1, 7)]
    found = [len(allocate(each, optimise=False).gpus) for each in posed]
    assert found == [2, 3, 8, 11, 22, 29]

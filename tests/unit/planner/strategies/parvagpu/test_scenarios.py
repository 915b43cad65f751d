"""ParvaGPU's six scenarios (SC'24, Table IV): the heuristic against the authors' maps."""

from __future__ import annotations

import csv

import pytest

from services.planner.capacity.fleet_sizing import Terms, pose
from services.planner.capacity.input_files import read_profiles, read_scenario
from services.planner.core.model import Problem
from services.planner.core.strategies.parvagpu.allocation import allocate
from tests.support.paths import OUTSIDE
from tests.support.planner import fleets

DATA = OUTSIDE / "parvagpu"
SCENARIOS = range(1, 7)

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="ParvaGPU's tables are not beside this checkout"
)


def scenario(number: int, terms: Terms) -> Problem:
    profiles = read_profiles(DATA / "prof_data", "a100-80gb")
    rates, latencies = DATA / "SLO/SLO_req_rate.csv", DATA / "SLO/SLO_latency.csv"
    services = read_scenario(rates, latencies, number, tuple(profiles))
    return pose(services, profiles, fleets.gpu_type("a100-80gb"), terms)


def shipped_gpus(number: int) -> int:
    path = DATA / f"deployment/SLO{number}_ParvaGPU_deploy.csv"
    rows = csv.DictReader(path.read_text().splitlines())
    return len({(row["Num instance"], row["Num GPU"]) for row in rows})


@pytest.mark.parametrize("number", SCENARIOS)
@pytest.mark.parametrize("latency_share", [0.5, 0.45], ids=["half", "as in their code"])
def test_the_repaired_heuristic_takes_no_more_gpus_than_the_authors_maps(
    number: int, latency_share: float
) -> None:
    """Though every map is physically valid, which 31 of theirs are not."""
    posed = scenario(number, Terms(latency_share=latency_share))
    found = allocate(posed)
    assert not found.unserved_rps
    assert len(found.gpus) <= shipped_gpus(number)
    for each in found.gpus:
        assert not each.gpu.pool.type.geometry.problem(each.layout)


def test_without_optimisation_it_takes_as_many_gpus_as_published() -> None:
    """Figure 5's last bars: relocation alone is the paper's, slot for slot."""
    terms = Terms(latency_share=0.45, max_processes=3)
    found = [len(allocate(scenario(n, terms), optimise=False).gpus) for n in SCENARIOS]
    assert found == [2, 3, 8, 11, 22, 29]

"""Capacity planning: the problem that files pose, and the plan as one reads it."""

from dataclasses import replace

import pytest

from services.kit.errors import InvalidArgument
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.table import Point, TableProfile
from services.planner.capacity.fleet_sizing import Service, Terms, lay_out, pose
from services.planner.core.model import Configuration, Problem
from services.planner.core.strategies import Strategy
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.parvagpu.strategy import (
    allocate,
    configuration,
    parvagpu,
    single,
)
from tests.support.planner import fleets

GPU = fleets.gpu_type("a100-80gb")
SPEED_RPS = {"1g": 100.0, "2g": 220.0, "3g": 340.0, "4g": 400.0, "7g": 700.0}


def table(speed: float = 1.0, gpu: str = "a100-80gb") -> TableProfile:
    """Batches of 1 and 8; with two processes all run out of memory."""
    points = {
        (gpu, size, 1, 1.0): (Point(1, 2 / rps / speed), Point(8, 8 / rps / speed))
        for size, rps in SPEED_RPS.items()
    }
    holes = {(gpu, size, 2, 1.0): (Point(1, None), Point(8, None)) for size in SPEED_RPS}
    return TableProfile(points | holes, AnalyticProfile(1.0))


PROFILES = {"fast": table(2.0), "slow": table()}
SERVICES = (Service("fast", 500.0, 0.2), Service("slow", 900.0, 0.2))


def test_the_problem_says_what_the_files_say() -> None:
    terms = Terms(gpus=9, latency_share=0.4, max_utilisation=0.8, time_limit_s=3.0)
    posed = pose(SERVICES, PROFILES, GPU, terms)
    assert [(m.name, m.demand_rps, m.slo_latency_s) for m in posed.models] == [
        ("fast", 500.0, 0.2),
        ("slow", 900.0, 0.2),
    ]
    assert len(posed.gpus) == 9
    assert posed.batch_sizes == (1, 8)
    assert posed.time_limit_s == 3.0
    assert posed.objective.goals.fewest_gpus > 0 == posed.objective.goals.clover
    assert {kind.processes for kind in posed.catalog} == {1}
    assert all(kind.latency_s <= 0.4 * 0.2 for kind in posed.catalog)


def unoptimized(problem: Problem) -> Configuration:
    return configuration(problem, allocate(problem, optimise=False))


@pytest.mark.parametrize(
    "strategy", [exact, parvagpu, lambda problem: parvagpu(single(problem)), unoptimized]
)
@pytest.mark.parametrize("rate_rps", [1.0, 900.0, 30_000.0])
def test_without_a_limit_there_are_gpus_enough(strategy: Strategy, rate_rps: float) -> None:
    posed = pose([Service("slow", rate_rps, 0.2)], PROFILES, GPU, Terms())
    found = lay_out(posed, strategy(posed))
    assert found.score.unserved_rps["slow"] == pytest.approx(0.0, abs=1e-6 * rate_rps)


def test_a_plan_adds_up() -> None:
    """900 req/s at 340 per 3 GPCs and 500 at 680: layouts, GPCs and shares agree."""
    posed = pose(SERVICES, PROFILES, GPU, Terms())
    for strategy in (exact, parvagpu):
        found = lay_out(posed, strategy(posed))
        assert all(not GPU.geometry.problem(layout) for layout in found.layouts.values())
        assert sum(map(len, found.layouts.values())) == len(found.segments)
        gpcs = [int(each.placement.profile[0]) for each in found.segments]
        assert found.gpcs == sum(gpcs)
        assert found.unallocated == pytest.approx(1 - sum(gpcs) / (7 * len(found.layouts)))
        for model in posed.models:
            shares = [each.share for each in found.segments if each.kind.model == model.name]
            assert sum(shares) == pytest.approx(1.0)


def test_too_few_gpus_leave_demand_unserved() -> None:
    posed = pose([Service("slow", 30_000.0, 0.2)], PROFILES, GPU, Terms(gpus=2))
    found = lay_out(posed, parvagpu(posed))
    assert len(found.layouts) == 2
    assert found.score.unserved_rps["slow"] > 0


def test_a_service_that_no_segment_can_serve_in_time_is_explained() -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"slow: no segment keeps 0\.5 x 1 ms; the fastest, 7g\.80gb with batch size 1 and 1 "
        r"process\(es\), takes 2\.9 ms",
    ) as caught:
        pose([Service("slow", 10.0, 0.001)], PROFILES, GPU, Terms())
    assert caught.value.field == "slow.latency_s"


def test_a_profile_of_holes_only_is_explained() -> None:
    holes = {(GPU.name, "1g", 1, 1.0): (Point(1, None),)}
    profiles = {"holes": TableProfile(holes, AnalyticProfile(1.0))}
    with pytest.raises(InvalidArgument, match=r"holes: no row of its profile ran on a slice of a1"):
        pose([Service("holes", 10.0, 1.0)], profiles, GPU, Terms())


def test_a_profile_of_another_gpu_is_explained() -> None:
    profiles = {"slow": table(gpu="h100-80gb")}
    with pytest.raises(InvalidArgument, match="slow: no row of its profile ran"):
        pose([SERVICES[1]], profiles, GPU, Terms())


def test_a_service_without_profile_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no profile of 'bert'; there are fast, slow"):
        pose([replace(SERVICES[0], model="bert")], PROFILES, GPU, Terms())

"""Cores are one GPU type among others: no strategy knows of them, and every one plans with them."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core import cpu_geometry
from services.kit.config import Goals, Objective
from services.planner.core.model import Gpu, GpuType, Pool, Problem
from services.planner.core.placement.placement import place
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.infadapter import infadapter
from tests.support.examples import examples
from tests.support.planner import fleets

INFADAPTER = Objective(goals=Goals(clover=0, infadapter=1))


def machine(cores: int) -> Pool:
    kind = GpuType(
        name=cpu_geometry.name(cores),
        geometry=cpu_geometry.geometry(cores, cores * 4 * 2**30),
        sm_count=cores,
        idle_power_w=0.74 * cores,
        context_power_w=0.74 * cores,
        max_power_w=3.5 * cores,
        core_gmacs_per_s=50.0,
    )
    return Pool(kind, "Z", 1.0, 200.0)


def problem(cores: int, demand_rps: float, objective: Objective = INFADAPTER) -> Problem:
    return fleets.problem(
        [Gpu("CPU-1", "node", machine(cores))],
        [
            fleets.model(
                gmacs=(0.1, 0.5, 2.0), accuracies=(70, 76, 78), demand_rps=demand_rps, slo_s=1.0
            )
        ],
        objective,
        batch_sizes=(1, 2),
        max_processes=1,
    )


@pytest.mark.parametrize("strategy", sorted(REGISTRY))
def test_every_strategy_serves_a_load_from_cores(strategy: str) -> None:
    posed = problem(4, 5.0)
    found = REGISTRY[strategy](posed)
    assert found.segments
    assert score(posed, found).unserved_rps["vision"] == pytest.approx(0, abs=1e-6)
    segments = place(posed, found, map(str, count()).__next__)
    spans = [machine(4).type.geometry.span(each.placement) for each in segments]
    taken = [core for span in spans for core in span]
    assert len(set(taken)) == len(taken) <= 4, "a core belongs to one segment at most"


@examples(0.3)
@given(st.integers(2, 8), st.floats(0.5, 100.0))
def test_more_load_never_leaves_better_answers(cores: int, demand_rps: float) -> None:
    """InfAdapter's trade: what more load takes of the cores, it takes from accuracy."""
    small, large = problem(cores, demand_rps), problem(cores, 2 * demand_rps)
    few, many = (score(each, infadapter(each)) for each in (small, large))
    if not sum(many.unserved_rps.values()):
        assert many.objective <= few.objective + 1e-6
        assert sum(few.unserved_rps.values()) == pytest.approx(0, abs=1e-9)


def test_a_rising_load_takes_more_cores_then_smaller_variants() -> None:
    chosen = [infadapter(problem(4, rps)) for rps in (2.0, 15.0, 300.0)]
    cores = [sum(int(k.profile[:-1]) * n for k, n in each.segments.items()) for each in chosen]
    variants = [{kind.variant for kind in each.segments} for each in chosen]
    assert cores[0] == 1
    assert cores[0] < min(cores[1:])
    assert variants[0] == {"v2"}
    assert "v2" in variants[1]
    assert "v2" not in variants[2]
    assert "v0" in variants[2]


def test_exact_with_infadapters_goals_is_infadapter() -> None:
    posed = problem(6, 20.0)
    one, other = score(posed, exact(posed)), score(posed, infadapter(posed))
    assert one.objective == pytest.approx(other.objective, abs=0.02)

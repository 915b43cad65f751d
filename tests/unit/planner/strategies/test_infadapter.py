"""The strategy `infadapter`: Eq. 1 on GPU segments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.config import Goals, InfAdapter, Objective
from services.planner.core.model import Configuration, Problem
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.infadapter import EQUATION_1, infadapter
from tests.support.planner import fleets


def posed(
    demand_rps: float, *, resources: float = 0.05, carbon_weight: float = 0.5, gpus: int = 1
) -> Problem:
    """A problem whose own goal is CLOVER's, on A100s."""
    objective = Objective(
        infadapter=InfAdapter(resources=resources), carbon_weight=carbon_weight, goals=Goals()
    )
    pools = fleets.fleet((fleets.pool(), gpus))
    return fleets.problem(
        pools, [fleets.model(demand_rps=demand_rps)], objective, batch_sizes=(1, 4), max_processes=1
    )


def by_equation_1(problem: Problem, found: Configuration) -> tuple[float, ...]:
    """Return what a configuration is worth by Eq. 1."""
    objective = problem.objective.model_copy(update={"goals": EQUATION_1})
    return score(replace(problem, objective=objective), found).worth


@settings(max_examples=15, deadline=None)
@given(demand_rps=st.floats(1, 1500), resources=st.sampled_from([0.0125, 0.05, 0.2]))
def test_no_strategy_is_better_by_equation_1(demand_rps: float, resources: float) -> None:
    """And the gap is proven."""
    problem = posed(demand_rps, resources=resources)
    found = infadapter(problem)

    assert found.gap == pytest.approx(0.0, abs=1e-6)
    for name in ("base", "co2opt", "exact"):
        rival = by_equation_1(problem, REGISTRY[name](problem))
        assert by_equation_1(problem, found) >= tuple(value - 1e-6 for value in rival), name


@settings(max_examples=15, deadline=None)
@given(demand_rps=st.floats(1, 1500))
def test_a_variant_takes_load_only_when_all_more_accurate_ones_are_full(demand_rps: float) -> None:
    problem = posed(demand_rps)
    found = infadapter(problem)
    loaded = [kind for kind, rps in found.load_rps.items() if rps > 1e-6]
    for kind, count in found.segments.items():
        usable_rps = problem.objective.max_utilisation * kind.throughput_rps * count
        if found.load_rps[kind] < usable_rps - 1e-6:
            assert all(other.accuracy >= kind.accuracy for other in loaded)


def test_the_deployments_carbon_weight_does_not_count() -> None:
    """Only Eq. 1 does: alone, CLOVER's goal at weight 1 would choose the smallest network."""
    blind, green = (infadapter(posed(50.0, carbon_weight=weight)) for weight in (0.0, 1.0))

    assert blind.segments == green.segments
    assert {kind.variant for kind in green.segments} == {"v3"}


def test_dearer_slices_cost_accuracy() -> None:
    cheap, dear = (infadapter(posed(200.0, resources=price)) for price in (0.0, 5.0))

    assert accuracy(cheap) > accuracy(dear)


def accuracy(found: Configuration) -> float:
    total_rps = sum(found.load_rps.values())
    return sum(kind.accuracy * rps for kind, rps in found.load_rps.items()) / total_rps


def test_ten_times_too_much_load_is_served_as_far_as_it_goes() -> None:
    problem = posed(1e5)
    found = infadapter(problem)

    assert score(problem, found).unserved_rps["vision"] > 0
    assert by_equation_1(problem, found) >= by_equation_1(problem, REGISTRY["co2opt"](problem))

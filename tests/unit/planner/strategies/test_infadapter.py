"""The strategy `infadapter`: Eq. 1 on GPU segments."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.infadapter.allocation import Allocation, Allocator, Candidate
from cinquefoil.gpuagent.v1.records import Placement
from services.gpuagent.core import cpu_geometry
from services.kit.config import Goals, InfAdapter, Objective
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import (
    Configuration,
    Gpu,
    GpuType,
    Model,
    Pool,
    Problem,
    Score,
    Segment,
    SegmentKind,
    Variant,
)
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.infadapter import EQUATION_1, infadapter
from tests.support.examples import examples
from tests.support.planner import fleets


def posed(
    demand_rps: float,
    *,
    resources: float = 0.05,
    carbon_weight: float = 0.5,
    gpus: int = 1,
    goals: Goals | None = None,
) -> Problem:
    """A problem on A100s whose own goal is CLOVER's, where none is given."""
    objective = Objective(
        latency_rule="batch",
        infadapter=InfAdapter(resources=resources),
        carbon_weight=carbon_weight,
        goals=goals or Goals(),
    )
    pools = fleets.fleet((fleets.pool(), gpus))
    return fleets.problem(
        pools, [fleets.model(demand_rps=demand_rps)], objective, batch_sizes=(1, 4), max_processes=1
    )


def by_equation_1(problem: Problem, found: Configuration) -> tuple[float, ...]:
    """Return what a configuration is worth by Eq. 1."""
    objective = problem.objective.model_copy(update={"goals": EQUATION_1})
    return score(replace(problem, objective=objective), found).worth


@examples(0.3)
@given(demand_rps=st.floats(1, 1500), resources=st.sampled_from([0.0125, 0.05, 0.2]))
def test_no_strategy_is_better_by_equation_1(demand_rps: float, resources: float) -> None:
    """The gap is proven, which is stated where Eq. 1 is what the deployment wants."""
    problem = posed(demand_rps, resources=resources)
    found = infadapter(problem)
    wanted = infadapter(posed(demand_rps, resources=resources, goals=EQUATION_1))

    assert found.gap is None
    assert wanted.gap == pytest.approx(0.0, abs=1e-6)
    assert wanted.segments == found.segments
    for name in ("base", "co2opt", "exact"):
        baseline = by_equation_1(problem, REGISTRY[name](problem))
        assert by_equation_1(problem, found) >= tuple(value - 1e-6 for value in baseline), name


@examples(0.3)
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


# ---- the optimum, against the paper's own problem ------------------------------------------------


@dataclass(frozen=True)
class Sizing:
    """The paper's problem: sizes of variants out of one budget of cores.

    Attributes:
        capacities_rps: By variant, of 1, 2, ... cores; the first variant is the most accurate.
        running: Cores by variant now; they fit the budget.
    """

    capacities_rps: tuple[tuple[float, ...], ...]
    budget: int
    demand_rps: float
    weights: InfAdapter
    running: Mapping[str, int]

    def candidates(self) -> list[Candidate]:
        """The variants, for the exhaustive search of sizes."""
        return [
            Candidate(
                f"v{index}",
                1.0 - 0.05 * index,
                float(1 + index % 3),
                {cores: rps for cores, rps in enumerate(capacity_rps, 1) if rps},
            )
            for index, capacity_rps in enumerate(self.capacities_rps)
        ]

    def problem(self) -> Problem:
        """Return the same problem on a machine whose cores segments share."""
        cores = cpu_geometry.geometry(self.budget, self.budget * 2**30)
        pool = Pool(GpuType("cpu", cores, self.budget, 1.0, 1.0, 2.0), "Z", 1.0, 200.0)
        variants = tuple(
            Variant(each.name, each.accuracy, AnalyticProfile(1.0), each.load_s)
            for each in self.candidates()
        )
        kinds = {
            (each.name, size): SegmentKind(
                "m", each.name, pool, f"{size}c", 1, 1, 0.01, rps, 1.0, each.accuracy
            )
            for each in self.candidates()
            for size, rps in each.capacity_rps.items()
        }
        running, start = [], 0
        for name, size in self.running.items():
            placement = Placement(f"{size}c", start)
            running.append(Segment(name, kinds[name, size], "node", "CPU", placement, 0.0))
            start += size
        objective = Objective(
            latency_rule="batch",
            infadapter=self.weights,
            max_utilisation=1.0,
            switch_price=0.0,
            layout_price=0.0,
        )
        model = Model("m", 1.0, 99.0, self.demand_rps, variants)
        gpus = (Gpu("CPU", "node", pool),)
        catalog = tuple(kinds.values())
        return Problem(gpus, (model,), catalog, objective, tuple(running), time_limit_s=60.0)


@st.composite
def sizings(draw: st.DrawFn, *, large_is_best: bool) -> Sizing:
    """Random problems.

    Args:
        draw: Hypothesis.
        large_is_best: One large size serves as much as several small ones of as many cores.
    """
    budget = draw(st.integers(1, 8))
    numbers = st.lists(st.integers(0, 60).map(float), min_size=budget, max_size=budget)
    capacities = draw(st.lists(numbers, min_size=1, max_size=4))
    if large_is_best:
        for own in capacities:
            for size in range(budget):
                parts = (own[part] + own[size - part - 1] for part in range(size))
                own[size] = max([own[size], *parts])
    running, left = {}, budget
    for index, own in enumerate(capacities):
        cores = draw(st.integers(0, left))
        if cores and own[cores - 1]:
            running[f"v{index}"] = cores
            left -= cores
    return Sizing(
        capacities_rps=tuple(map(tuple, capacities)),
        budget=budget,
        demand_rps=draw(st.integers(1, 120).map(float)),
        weights=InfAdapter(
            resources=draw(st.sampled_from([0.0, 0.0125, 0.05, 0.2, 1.0])),
            loading=draw(st.sampled_from([0.0, 0.001, 0.1])),
        ),
        running=running,
    )


def solved(sizing: Sizing) -> tuple[Allocation, Score]:
    """Return the optimum of one size per variant, and the score of the strategy's answer."""
    allocator = Allocator(sizing.candidates(), sizing.budget, sizing.weights)
    optimum = allocator.allocate(sizing.demand_rps, sizing.running)
    posed = sizing.problem()
    objective = posed.objective.model_copy(update={"goals": EQUATION_1})
    found = REGISTRY["infadapter"](posed)
    return optimum, score(replace(posed, objective=objective), found)


@examples(1.2)
@given(sizings(large_is_best=True))
def test_the_answer_is_the_optimum_of_the_papers_problem(sizing: Sizing) -> None:
    """Where several segments of a variant are no better than one."""
    optimum, found = solved(sizing)

    assert sum(found.unserved_rps.values()) == pytest.approx(optimum.unserved_rps, abs=1e-3)
    if not optimum.overloaded:  # with too much load, what is refused counts in one mean only
        assert found.objective == pytest.approx(100 * optimum.objective, abs=1e-4)


@examples(1.2)
@given(sizings(large_is_best=False))
def test_no_choice_of_one_size_per_variant_is_better(sizing: Sizing) -> None:
    """Several segments of a variant may be better than one, whatever the capacities."""
    optimum, found = solved(sizing)

    assert sum(found.unserved_rps.values()) <= optimum.unserved_rps + 1e-3
    if not optimum.overloaded:
        assert found.objective >= 100 * optimum.objective - 1e-4

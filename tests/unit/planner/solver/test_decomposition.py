"""The decomposition of plans into models, against one program for all."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.kit.config import Goals, Objective
from services.planner.core.model import Problem, Score
from services.planner.core.placement.placement import place
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.solver import highs
from services.planner.core.strategies.exact import candidates, exact
from services.planner.core.strategies.exact_program import Formulation
from tests.support.examples import examples
from tests.support.planner import fleets

FEWEST = Goals(clover=0, fewest_gpus=1)
MIXED = Goals(clover=1, fewest_gpus=1, infadapter=1)


def problem(goals: Goals, demands: list[float], gpus: int = 8, floor: float = 0.0) -> Problem:
    models = [
        fleets.model(f"m{index}", gmacs=(1.0, 8.0), accuracies=(75.0, 82.0), demand_rps=demand)
        for index, demand in enumerate(demands)
    ]
    fleet = fleets.fleet((fleets.pool(), gpus), (fleets.pool("a30", zone="GB"), 2))
    return fleets.problem(fleet, models, Objective(goals=goals, accuracy_floor=floor))


@pytest.mark.parametrize("goals", [FEWEST, MIXED, Goals()], ids=["fewest", "mixed", "clover"])
@pytest.mark.parametrize("floor", [0.0, 0.95])
def test_the_bound_holds_and_the_answer_is_near_the_optimum(
    monkeypatch: pytest.MonkeyPatch, goals: Goals, floor: float
) -> None:
    """Near the relaxation or by decomposition, the optimum is the plain program's."""

    @examples(0.1)
    @example([119.0, 119.0])  # a start whose loads its columns do not have
    @given(st.lists(st.floats(50.0, 4_000.0), min_size=1, max_size=3))
    def check(demands: list[float]) -> None:
        posed = problem(goals, demands, floor=floor)
        known = prices(posed)
        kinds = tuple(candidates(known))

        def solved(large: int, tolerance: float) -> tuple[Score, float]:
            monkeypatch.setattr(highs, "LARGE", large)
            found = Formulation(known, kinds).solve(time_limit_s=20.0, tolerance=tolerance)
            assert found is not None
            assert found.gap is not None
            judged = score(posed, found, known)
            return judged, found.gap * abs(judged.objective)

        best, _ = solved(10_000, 0.0)
        quick, gap = solved(0, 1e-3)
        if any(best.shortage):
            assert quick.shortage[1] <= best.shortage[1] + 1e-3
            return
        assert quick.shortage == (0, 0, 0, 0)
        assert quick.objective <= best.objective + 1e-6
        assert quick.objective + gap >= best.objective - 1e-4, "no plan is better than the bound"

    check()


def test_a_large_fleet_gets_the_optimum_of_its_few_gpus() -> None:
    """Twelve models on 200 GPUs: as many GPUs as the plain program proves for a small fleet."""
    demands = [300.0 + 170.0 * index for index in range(12)]
    few, many = (problem(FEWEST, demands, gpus=gpus) for gpus in (30, 198))
    plain, found = exact(few), exact(many)
    assert plain.gap == 0
    assert found.gap == 0
    assert score(few, plain).gpus_in_use == score(many, found).gpus_in_use


def test_planning_again_is_no_worse_than_staying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing changed but that a plan runs, with prices on changes."""
    monkeypatch.setattr(highs, "LARGE", 0)
    posed = problem(FEWEST, [500.0, 900.0, 1_700.0], gpus=40)
    numbers = iter(range(1_000))
    running = place(posed, exact(posed), lambda: f"s{next(numbers)}")
    priced = Objective(goals=FEWEST, switch_price=0.5, layout_price=0.5)
    again = fleets.problem(
        fleets.with_plan(posed.gpus, running), posed.models, priced, running=running
    )
    judged = score(again, exact(again))
    assert judged.gpus_in_use == len({segment.gpu_uuid for segment in running})
    assert judged.reconfiguration == 0

"""Whole numbers block by block, on plans whose demand is more than the fleet serves."""

import random

import pytest

from services.kit.config import Goals, Objective
from services.planner.core.model import Problem
from services.planner.core.problem.score import score
from services.planner.core.solver.highs import Solver
from services.planner.core.strategies.exact import exact
from tests.support.planner import fleets


def overloaded(goals: Goals, seed: int) -> Problem:
    """Twelve models with far more demand than 800 GPUs serve."""
    draw = random.Random(seed)
    models = [
        fleets.model(
            f"m{index}",
            gmacs=(1.0, 8.0),
            accuracies=(75.0, 82.0),
            demand_rps=draw.uniform(1e6, 4e6),
        )
        for index in range(12)
    ]
    fleet = fleets.fleet((fleets.pool(), 600), (fleets.pool("a30", zone="GB"), 200))
    return fleets.problem(fleet, models, Objective(goals=goals))


@pytest.mark.parametrize("goals", [Goals(clover=0, fewest_gpus=1), Goals()], ids=["fewest", "all"])
@pytest.mark.parametrize("seed", range(3))
def test_an_overload_is_shared_out_to_one_gpu(
    monkeypatch: pytest.MonkeyPatch, goals: Goals, seed: int
) -> None:
    """All that is proven comes from relaxations and one small program: no goal is searched for."""

    def searched(*_: object) -> None:
        pytest.fail("a goal was searched for by itself")

    monkeypatch.setattr(Solver, "_quick", searched)
    problem = overloaded(goals, seed)
    found = exact(problem)
    assert score(problem, found).shortage[2] > 0
    assert found.gap is not None
    assert found.gap * len(problem.gpus) <= 1.0 + 1e-6

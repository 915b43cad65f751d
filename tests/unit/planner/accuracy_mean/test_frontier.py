"""The frontier has the plans that are best at some price of accuracy, as single searches find."""

import time
from dataclasses import replace

import numpy as np
import pytest

from services.kit.config import Objective
from services.planner.core.accuracy_mean.frontier import frontier
from services.planner.core.model import Configuration, Problem
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact
from tests.support.planner import fleets

OBJECTIVE = Objective(park_idle_gpus=True)


@pytest.mark.parametrize("price", [0.02, 0.1, 0.3, 1.0, 5.0])
def test_at_any_price_the_frontier_has_the_accuracy_that_the_strategy_finds(price: float) -> None:
    """Also on another grid: only the ratio of price and intensity counts."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(demand_rps=60.0)], OBJECTIVE
    )
    found = frontier(problem, (1.0,), exact, 60.0)
    (level,), (model,) = found.levels, problem.models
    assert len(level.prices) >= 1
    for ratio in (1.0, 2.5):
        pools = {
            p: replace(p, intensity_gco2e_per_kwh=ratio * p.intensity_gco2e_per_kwh)
            for p in problem.pools
        }
        moved = replace(
            problem,
            gpus=tuple(replace(gpu, pool=pools[gpu.pool]) for gpu in problem.gpus),
            catalog=tuple(replace(kind, pool=pools[kind.pool]) for kind in problem.catalog),
            accuracy_price={model.name: price * ratio * found.unit_gco2e[model.name]},
        )
        chosen = int(np.searchsorted(level.prices, price, "right"))
        seen = score(moved, exact(moved)).accuracy[model.name] / model.best.accuracy
        assert level.accuracy[model.name][chosen] == pytest.approx(seen, abs=2e-3)


def test_accuracy_rises_with_its_price_and_a_large_fleet_is_like_a_small_one() -> None:
    """Of 100 GPUs a few stand for all: the same plans at about the same prices."""
    small, large = (
        fleets.problem(
            fleets.fleet((fleets.pool(), n)), [fleets.model(demand_rps=20.0 * n)], OBJECTIVE
        )
        for n in (10, 100)
    )
    ours, theirs = (frontier(each, (1.0,), exact, 20.0) for each in (small, large))
    for level in (*ours.levels, *theirs.levels):
        (accuracy,) = level.accuracy.values()
        assert list(accuracy) == sorted(accuracy)
        assert list(level.prices) == sorted(level.prices)
    (name,) = ours.unit_gco2e
    for price in (0.05, 0.2, 1.0):
        at = [
            each.levels[0].accuracy[name][np.searchsorted(each.levels[0].prices, price, "right")]
            for each in (ours, theirs)
        ]
        assert at[0] == pytest.approx(at[1], abs=0.01)


def test_without_time_the_ends_are_known() -> None:
    """Loads whose turn comes after the time is up get the two ends of their frontier."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(demand_rps=60.0)], OBJECTIVE
    )
    found = frontier(problem, (0.5, 1.0, 1.5), exact, 1e-6)
    for level in found.levels:
        (accuracy,) = level.accuracy.values()
        assert len(accuracy) == 2
        assert accuracy[0] < accuracy[1]


def test_a_busy_machine_makes_no_frontier_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search waits for a processor for a third of the limit; only its own time counts."""
    problem = fleets.problem(
        fleets.fleet((fleets.pool(), 2)), [fleets.model(demand_rps=60.0)], OBJECTIVE
    )
    idle = frontier(problem, (1.0,), exact, 60.0)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def waits(posed: Problem) -> Configuration:
        nonlocal now_s
        now_s += 20.0
        return exact(posed)

    (busy,), (quiet,) = frontier(problem, (1.0,), waits, 60.0).levels, idle.levels
    assert list(busy.prices) == list(quiet.prices)

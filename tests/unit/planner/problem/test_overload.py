"""Priorities where the fleet cannot serve all: fairness, most requests, or a model."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective
from services.planner.core.model import Model, Problem, Score
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from tests.support.examples import examples
from tests.support.planner.fleets import fleet, model, pool, problem

LARGE, SMALL = 16_000.0, 3_000.0


def overloaded(overload: str = "fair", weights: Mapping[str, float] | None = None) -> Problem:
    """Two A100s and half as much load again: a large request takes ten times a small one's work."""
    tasks = [
        replace(
            model(name, gmacs=(gmacs,), accuracies=(80.0,), demand_rps=rps, slo_s=1.0),
            overload_weight=(weights or {}).get(name, 1.0),
        )
        for name, gmacs, rps in (("small", 1.0, LARGE), ("large", 10.0, SMALL))
    ]
    objective = Objective.model_validate({"overload": overload})
    return problem(
        fleet((pool(), 2)), tasks, objective, batch_sizes=(32,), max_processes=1, time_limit_s=3.0
    )


def judged(posed: Problem, strategy: str = "exact") -> Score:
    return score(posed, REGISTRY[strategy](posed))


def shares(found: Score) -> Mapping[str, float]:
    """Return the unserved share of each model's demand."""
    demand_rps = {"small": LARGE, "large": SMALL}
    return {name: rps / demand_rps[name] for name, rps in found.unserved_rps.items()}


@pytest.mark.parametrize("strategy", ["exact", "annealing", "random"])
def test_fairness_costs_requests_and_is_a_setting(strategy: str) -> None:
    fair, most = judged(overloaded("fair"), strategy), judged(overloaded("most"), strategy)

    assert max(shares(fair).values()) < max(shares(most).values())
    assert sum(most.unserved_rps.values()) < 0.8 * sum(fair.unserved_rps.values())


def test_among_equals_no_model_is_served_less_than_it_must() -> None:
    """With whole slices the shares are not quite equal."""
    unserved = shares(judged(overloaded("fair")))

    assert unserved["small"] == pytest.approx(unserved["large"], abs=0.05)


@examples(0.1)
@given(st.floats(1.0, 20.0), st.sampled_from(["fair", "most"]))
def test_a_model_that_weighs_more_is_not_served_less(weight: float, overload: str) -> None:
    plain = shares(judged(overloaded(overload)))
    heavy = shares(judged(overloaded(overload, {"large": weight})))

    assert heavy["large"] <= plain["large"] + 1e-6


def test_a_weight_above_ten_outweighs_ten_times_the_work() -> None:
    """In "most" it is large requests that are refused, until each counts more than its work."""
    plain = shares(judged(overloaded("most")))
    heavy = shares(judged(overloaded("most", {"large": 30.0})))

    assert plain["small"] < 0.05
    assert plain["large"] > 0.4
    assert heavy["large"] < 0.05
    assert heavy["small"] > 0.4


@pytest.mark.parametrize(("seed", "load_rps"), [(0, 28_000.0), (2, 28_000.0)])
def test_most_refuses_no_more_than_fair_on_a_large_fleet(seed: int, load_rps: float) -> None:
    """Six models on 64 GPUs, which lack a fifth of what these take."""
    draw, gpus = random.Random(seed), 64
    models = [
        scaled(
            draw.uniform(0.3, 1.7) * gpus * load_rps / 6,
            draw.choice((0.1, 0.15, 0.3)),
            draw.uniform(0.4, 1.5),
            f"m{at}",
        )
        for at in range(6)
    ]

    def refused(overload: str) -> float:
        objective = Objective.model_validate({"overload": overload})
        posed = problem(fleet((pool(), gpus)), models, objective, time_limit_s=5.0)
        return sum(judged(posed).unserved_rps.values())

    assert refused("most") <= refused("fair")


def scaled(demand_rps: float, slo_s: float, scale: float, name: str) -> Model:
    gmacs = [scale * each for each in (0.7, 1.8, 9.9, 37.0)]
    return model(name, gmacs=gmacs, demand_rps=demand_rps, slo_s=slo_s)

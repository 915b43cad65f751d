"""`objective.kind: cost`: points are money."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from services.kit.config import AccuracyMean, Objective
from services.planner.core.model import Configuration, Problem, Score
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.exact import exact
from tests.support.planner import fleets

VALUE_EUR = 0.002


def posed(eur_per_kwh: float, carbon_eur_per_t: float, value_eur: float = VALUE_EUR) -> Problem:
    """Return a problem with one model on four GPUs, by cost."""
    objective = Objective(
        kind="cost",
        carbon_price_eur_per_t=carbon_eur_per_t,
        accuracy_value_eur=value_eur,
        park_idle_gpus=True,
    )
    pool = replace(fleets.pool(), eur_per_kwh=eur_per_kwh)
    model = fleets.model(demand_rps=200.0)
    problem = fleets.problem(fleets.fleet((pool, 4)), [model], objective)
    price = objective.accuracy_price_gco2e
    assert price is not None
    return replace(problem, accuracy_price={model.name: price})


def net_eur_per_h(problem: Problem, found: Score) -> float:
    """Return cost less the value of accuracy, by hand from what a score states."""
    (model,) = problem.models
    objective = problem.objective
    watts, pool = found.power_w, next(iter(problem.pools))
    kwh = watts / 1e3 * pool.pue
    carbon_eur = kwh * pool.intensity_gco2e_per_kwh * 1e-6 * objective.carbon_price_eur_per_t
    points = 100 * (found.accuracy[model.name] / model.best.accuracy - 1)
    value_eur = (objective.accuracy_value_eur or 0) / 1000 * points * model.demand_rps * 3600
    return kwh * pool.eur_per_kwh + carbon_eur - value_eur


@pytest.mark.parametrize(("eur", "carbon"), [(0.3, 0.0), (0.0, 80.0), (0.12, 80.0), (-0.01, 200.0)])
def test_more_points_are_less_money_in_the_same_proportion(eur: float, carbon: float) -> None:
    """The difference of two configurations in points is that of their net cost in euros."""
    problem = posed(eur, carbon)
    ours, base = (score(problem, REGISTRY[name](problem)) for name in ("exact", "base"))
    small = Objective(carbon_weight=0.99, park_idle_gpus=True)
    cleanest = score(problem, exact(replace(problem, objective=small, accuracy_price={})))
    assert not any(each.unserved_rps["vision"] for each in (ours, base, cleanest))
    money = [net_eur_per_h(problem, each) for each in (ours, base, cleanest)]
    points = [each.objective for each in (ours, base, cleanest)]
    assert money[0] <= min(money) + 1e-9
    assert (points[0] - points[1]) * (money[2] - money[1]) == pytest.approx(
        (points[2] - points[1]) * (money[0] - money[1]), rel=1e-6, abs=1e-9
    )


def test_dear_energy_takes_smaller_variants() -> None:
    """A hundredfold price gives up accuracy for energy; a dear point of accuracy does not."""

    def accuracy(problem: Problem) -> float:
        found: Configuration = exact(problem)
        return score(problem, found).accuracy["vision"]

    assert accuracy(posed(5.0, 0.0, 1e-4)) < accuracy(posed(0.05, 0.0, 1e-4))
    assert accuracy(posed(5.0, 0.0, 1e3)) == pytest.approx(accuracy(posed(0.05, 0.0, 1e3)))


def test_a_score_has_its_cost_where_a_price_is_known() -> None:
    """Energy and carbon with kind cost; without any price there is no cost."""
    problem = posed(0.12, 80.0)
    found = score(problem, exact(problem))
    kwh = 1.5 * found.power_w / 1e3  # with the PUE of fleets.pool
    grams = next(iter(problem.pools)).intensity_gco2e_per_kwh
    assert found.cost_eur_per_h == pytest.approx(kwh * (0.12 + grams * 80e-6))
    clover = replace(problem, objective=Objective(), accuracy_price={})
    assert score(clover, exact(clover)).cost_eur_per_h == pytest.approx(
        score(clover, exact(clover)).power_w * 1.5e-3 * 0.12
    )
    free = fleets.problem(fleets.fleet((fleets.pool(), 1)), [fleets.model(demand_rps=1.0)])
    assert score(free, exact(free)).cost_eur_per_h is None


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "accuracy_value_eur"),
        ({"accuracy_value_eur": 0.0}, "accuracy_value_eur"),
        ({"accuracy_value_eur": 1.0, "accuracy_mean": AccuracyMean(at_least=0.9)}, "accuracy_mean"),
        ({"accuracy_value_eur": 1.0, "carbon_price_eur_per_t": 1e9}, "carbon_price_eur_per_t"),
        ({"accuracy_value_eur": float("nan")}, "accuracy_value_eur"),
    ],
)
def test_an_objective_that_says_nothing_is_refused(settings: dict[str, object], named: str) -> None:
    """By the name of its setting."""
    with pytest.raises(ValidationError, match=named):
        Objective.model_validate({"kind": "cost", **settings})

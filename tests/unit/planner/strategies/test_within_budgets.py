"""Power budgets of sites, in every strategy."""

from dataclasses import replace
from functools import cache

import pytest

from services.kit.config import Objective
from services.planner.core.explain.explain import DecidedPlan, explain
from services.planner.core.forecast.horizon import plan_ahead
from services.planner.core.model import Configuration, Period, Problem, SiteLimit
from services.planner.core.placement.placement import place
from services.planner.core.problem.score import score
from services.planner.core.problem.site_power import idle_w
from services.planner.core.strategies import BY_OBJECTIVE, REGISTRY
from tests.support.planner import fleets

SETTING = "sites.hall.power_budget_w"
DEMAND_RPS = 450.0
FREE_W = 1e6
GMACS, ACCURACIES = (0.7, 1.9, 38.0), (78.4, 81.5, 84.6)


def problem(limit_w: float, demand_rps: float = DEMAND_RPS) -> Problem:
    """A fleet of which half is in the site "hall"."""
    here = replace(fleets.pool(), site="hall")
    posed = fleets.problem(
        fleets.fleet((here, 1), (fleets.pool(), 1)),
        [fleets.model(gmacs=GMACS, accuracies=ACCURACIES, demand_rps=demand_rps)],
        Objective(carbon_weight=0.1),
        batch_sizes=(1, 8),
        max_processes=1,
        time_limit_s=2.0,
    )
    return replace(posed, sites=(SiteLimit("hall", limit_w, SETTING, overhead_w=100.0),))


@cache
def unbound(name: str) -> Configuration:
    """Return a strategy's choice where power is no limit."""
    return REGISTRY[name](problem(FREE_W))


def alone(posed: Problem) -> Problem:
    """The same demand on the site's own GPUs."""
    return replace(posed, gpus=tuple(gpu for gpu in posed.gpus if gpu.pool.site))


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_strategy_keeps_a_budget_that_binds(name: str) -> None:
    """Above idle power, a site draws no more than 0.6 of what it would; also once placed."""
    free = problem(FREE_W)
    drawn_w = score(free, unbound(name)).site_w["hall"]
    least_w = idle_w(free, free.sites[0])
    limit_w = least_w + 0.6 * (drawn_w - least_w)
    posed = problem(limit_w)
    found = REGISTRY[name](posed)
    kept = score(posed, found)
    assert kept.site_w["hall"] <= limit_w * (1 + 1e-5)
    assert kept.over_budget == 0
    assert set(found.limited) <= {"hall"}
    if name in BY_OBJECTIVE:
        assert kept.refused_rps <= 0.1 * DEMAND_RPS


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_budget_that_does_not_bind_changes_nothing(name: str) -> None:
    """The answer is that without sites."""
    posed = problem(FREE_W)
    found = unbound(name)
    free = REGISTRY[name](replace(posed, sites=(), time_limit_s=posed.time_limit_s / 2))
    assert not found.limited
    assert score(posed, found).worth == pytest.approx(score(posed, free).worth)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_below_idle_power_nothing_runs_there(name: str) -> None:
    """A budget below idle power leaves the site without segments; the others keep serving."""
    posed = problem(1.0)
    found = REGISTRY[name](posed)
    assert not any(kind.pool.site for kind, n in found.segments.items() if n)
    assert any(n for n in found.segments.values())


def test_places_keep_the_budget() -> None:
    """The segments at their places are on no more GPUs than the budget has power for."""
    free = problem(FREE_W)
    drawn_w = score(free, unbound("exact")).site_w["hall"]
    posed = problem(0.8 * drawn_w)
    found = REGISTRY["exact"](posed)
    numbers = iter(range(10_000))
    target = place(posed, found, lambda: f"s{next(numbers)}")
    pools = {gpu.uuid: gpu.pool for gpu in posed.gpus}
    used = {uuid for each in target for uuid in each.gpu_uuids}
    in_use = {pool: sum(pools[uuid] == pool for uuid in used) for pool in posed.pools}
    assert score(posed, found, in_use=in_use).over_budget == 0


def test_the_explanation_has_the_worth_of_more_power() -> None:
    """The binding constraint names the setting, and what a tenth more power would gain."""
    free = alone(problem(FREE_W))
    drawn_w = score(free, REGISTRY["exact"](free)).site_w["hall"]
    posed = alone(problem(0.93 * drawn_w))
    chosen = REGISTRY["exact"](posed)
    assert chosen.limited == pytest.approx({"hall": drawn_w})
    found = explain(DecidedPlan(1, posed, chosen, 0.1))
    power = [each for each in found.bindings if each.constraint == "power_budget"]
    assert [each.subject for each in power] == ["hall"]
    assert SETTING in power[0].sentence
    assert "more would gain" in power[0].sentence
    assert {each.setting for each in found.conditions} == {SETTING}


def test_a_budget_known_ahead_counts_in_its_periods() -> None:
    """A later period without any power there is planned for without segments there."""
    posed = problem(FREE_W, 4 * DEMAND_RPS)
    here = {gpu.pool.zone: gpu.pool.intensity_gco2e_per_kwh for gpu in posed.gpus}
    limit = replace(posed.sites[0], limit_w=1.0)
    ahead = replace(
        posed,
        forecast=(Period(3600.0, here, posed.sites), Period(36_000.0, here, (limit,))),
        objective=posed.objective.model_copy(update={"switch_price": 1e6}),
    )
    found = plan_ahead(ahead, REGISTRY["exact"])
    first = plan_ahead(replace(ahead, forecast=ahead.forecast[:1]), REGISTRY["exact"])
    there = [sum(n for k, n in each.segments.items() if k.pool.site) for each in (first, found)]
    assert there[0] > 0
    assert there[1] == 0


@pytest.mark.parametrize("room", [0.2, 0.8])
def test_a_budget_that_takes_requests_is_kept_and_used(room: float) -> None:
    """Where even the smallest variants draw too much, as many requests are served as it allows."""
    free = alone(problem(FREE_W))
    least_w = idle_w(free, free.sites[0])
    smallest = replace(free, objective=Objective(carbon_weight=1.0))
    pool = next(iter(free.pools))
    least_w += pool.pue * pool.type.use_power_w
    used_w = score(smallest, REGISTRY["exact"](smallest)).site_w["hall"] - least_w
    limit_w = least_w + room * used_w
    posed = replace(free, sites=(replace(free.sites[0], limit_w=limit_w),))
    kept = score(posed, REGISTRY["exact"](posed))
    assert kept.site_w["hall"] == pytest.approx(limit_w, rel=1e-3)
    assert kept.over_budget == 0
    assert 0 < kept.refused_rps < DEMAND_RPS

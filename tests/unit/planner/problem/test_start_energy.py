"""Energy that a segment takes before its first answer, in the price of a change."""

from dataclasses import replace

import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.planner.core.forecast.horizon import plan_ahead
from services.planner.core.model import Configuration, Period, Problem, Segment
from services.planner.core.problem.pricing import prices, start_energy_j
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact
from tests.support.planner import fleets

FREE = Objective(carbon_weight=0.5, switch_price=0.0, layout_price=0.0, park_idle_gpus=True)


def running(boot_s: float, *, stated: bool = True) -> Problem:
    """One GPU serves with the second largest variant; others take so long to start."""
    model = fleets.model(demand_rps=20.0, load_s=(boot_s,) * 4 if stated else ())
    gpus = fleets.fleet((fleets.pool(), 2))
    problem = fleets.problem(gpus, [model], FREE)
    kind = next(k for k in problem.catalog if (k.variant, k.profile) == ("v2", "3g.20gb"))
    runs = Segment("s", kind, gpus[0].node, gpus[0].uuid, Placement(kind.profile, 0), 1.0)
    return replace(problem, gpus=fleets.with_plan(gpus, [runs]), running=(runs,))


def test_a_change_costs_the_energy_of_its_starts_spread_over_an_hour() -> None:
    """By hand: 3/7 of a GPU with a context for a minute, as carbon of an hour of the baseline."""
    problem = running(60.0)
    known = prices(problem)
    kind = next(k for k in problem.catalog if (k.variant, k.profile) == ("v0", "3g.20gb"))
    energy_j = 60.0 * 3 / 7 * kind.pool.type.context_power_w
    assert start_energy_j(kind, 60.0) == pytest.approx(energy_j)
    gco2e_per_s = kind.pool.carbon_gco2e(energy_j) / 3600.0
    points = 50.0 * gco2e_per_s / sum(known.baseline_gco2e_per_s.values())
    found = score(problem, Configuration({kind: 2}, {kind: 20.0}))
    assert found.reconfiguration == pytest.approx(2 * points)
    kept = Configuration({problem.running[0].kind: 1}, {problem.running[0].kind: 20.0})
    assert score(problem, kept).reconfiguration == 0.0


def test_a_start_that_takes_more_energy_than_it_saves_is_not_made() -> None:
    """Variants that are there at once replace what runs; those that boot for an hour do not."""
    assert "v2" not in {kind.variant for kind in exact(running(0.0)).segments}
    assert {kind.variant for kind in exact(running(3600.0)).segments} == {"v2"}


def test_a_measured_boot_replaces_the_stated_one() -> None:
    """Nothing is stated, and rollouts took an hour."""
    problem = running(0.0, stated=False)
    boots = {("vision", variant.name): 3600.0 for variant in problem.models[0].variants}
    slow = replace(problem, boot_s=boots)
    assert {kind.variant for kind in exact(slow).segments} == {"v2"}


def test_the_program_pays_what_the_score_says() -> None:
    """The proven bound is that of the scored objective, energy of the starts included."""
    problem = running(120.0)
    found = exact(problem)
    assert found.gap is not None
    assert found.gap < 1e-3
    for kind in problem.catalog[::7]:
        other = Configuration({kind: 1}, {kind: min(20.0, prices(problem).usable_rps(kind))})
        assert score(problem, other).worth <= score(problem, found).worth


def test_a_start_pays_back_over_the_hours_that_it_lasts() -> None:
    """An hour does not earn it, two days of the same grid do: the horizon spreads its price."""
    problem = running(3600.0)
    pool = problem.gpus[0].pool
    here = {pool.zone: pool.intensity_gco2e_per_kwh}
    ahead = replace(problem, forecast=tuple(Period(3600.0, here) for _ in range(48)))
    assert "v2" not in {kind.variant for kind in plan_ahead(ahead, exact).segments}

"""Power budgets of sites, kept by every strategy.

Most budgets bind rarely. A strategy therefore decides first as if there were none, at half of its
time; where that draws too much it decides again. Strategies that follow a rule instead of scores
may still draw too much: then the answer of `exact` takes the place of theirs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from services.planner.core.model import Configuration, Problem
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.problem.site_power import sites_over
from services.planner.core.strategies.exact import exact


def within_budgets(
    strategy: Callable[[Problem], Configuration],
) -> Callable[[Problem], Configuration]:
    """Return a strategy that keeps the power budgets of a problem's sites."""

    @wraps(strategy)
    def planned(problem: Problem) -> Configuration:
        if not problem.sites:
            return strategy(problem)
        half = replace(problem, time_limit_s=problem.time_limit_s / 2)
        known = prices(half)
        free = strategy(replace(half, sites=()))
        drawn = score(half, free, known).site_w
        over = sites_over(half, drawn)
        if not over:
            return free
        found = strategy(half)
        if score(half, found, known).over_budget > 0:
            found = exact(half)
        return replace(found, limited={site.name: drawn[site.name] for site in over})

    return planned

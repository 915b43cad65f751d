"""Power budgets of sites, kept by every strategy.

Most budgets bind rarely. A strategy therefore decides first as if there were none, at half of its
time; where that draws too much it decides again. Strategies that follow a rule instead of scores
may still draw too much: then the answer of `exact` takes the place of theirs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from services.planner.core.model import Configuration, Problem, Score
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.problem.site_power import sites_over
from services.planner.core.strategies.exact import exact

SAME_POINTS = 1e-6
"""Relative difference of objectives that counts as none."""


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
        wanted = score(half, free, known)
        over = sites_over(half, wanted.site_w)
        if not over:
            return free
        found = strategy(half)
        kept = score(half, found, known)
        if kept.over_budget > 0:
            found = exact(half)
            kept = score(half, found, known)
        if not _worse(kept, wanted):
            return found
        return replace(found, limited={site.name: wanted.site_w[site.name] for site in over})

    return planned


def _worse(kept: Score, wanted: Score) -> bool:
    """Return whether a score is worse than another, budgets aside; rounding errors are none."""
    if kept.shortage[1:] != wanted.shortage[1:]:
        return kept.shortage[1:] > wanted.shortage[1:]
    return kept.objective < wanted.objective - SAME_POINTS * max(1.0, abs(wanted.objective))

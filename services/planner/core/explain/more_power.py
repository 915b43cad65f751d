"""Worth of more power at a site: the dual price of its power budget, by another solve."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from cinquefoil.planner.v1.records import Binding
from services.planner.core.explain.alternatives import Judged, judge, quick
from services.planner.core.model import Configuration, Problem, Score, SiteLimit
from services.planner.core.problem.pricing import prices

STEP_W = 1000.0
STEP_SHARE = 0.1
"""Power added: 1 kW, but at most this share of the budget."""

MAX_SITES = 4
"""Sites that are looked at, those with the fullest budgets."""

_WORTH_SHOWING = 1e-3


def more_power(
    problem: Problem, chosen: Judged, solve: Callable[[Problem], Configuration]
) -> Iterator[Binding]:
    """Yield the power budgets that bind a plan, with the gain from more power.

    Args:
        problem: The problem.
        chosen: The chosen configuration.
        solve: Finds an optimum.
    """
    power_w = chosen.score.site_w
    full = sorted(
        problem.sites, key=lambda each: -power_w.get(each.name, 0.0) / max(each.limit_w, 1.0)
    )
    for site in full[:MAX_SITES]:
        drawn_w = power_w.get(site.name, 0.0)
        step_w = min(STEP_W, STEP_SHARE * site.limit_w)
        more = quick(replace(problem, sites=_raised(problem, site, step_w)))
        better = judge(prices(more), solve(more))
        if better is not None and (gain := _gain(problem, chosen.score, better.score)):
            yield Binding(
                constraint="power_budget",
                subject=site.name,
                used=min(1.0, drawn_w / site.limit_w),
                sentence=(
                    f"{site.name} draws {_kw(drawn_w)} of the {_kw(site.limit_w)} that "
                    f"{site.setting} allows; {_kw(step_w)} more would gain {gain}."
                ),
            )


def _raised(problem: Problem, site: SiteLimit, step_w: float) -> tuple[SiteLimit, ...]:
    more = replace(site, limit_w=site.limit_w + step_w)
    return tuple(more if each.name == site.name else each for each in problem.sites)


def _gain(problem: Problem, ours: Score, theirs: Score) -> str:
    """Return what a score gains, as text; "": nothing worth showing."""
    served_rps = sum(ours.unserved_rps.values()) - sum(theirs.unserved_rps.values())
    points = theirs.objective - ours.objective
    gains = [f"{served_rps:.3g} req/s served in time"] if served_rps > _WORTH_SHOWING else []
    for model in problem.models:
        better = theirs.accuracy.get(model.name, 0.0) - ours.accuracy.get(model.name, 0.0)
        if better > _WORTH_SHOWING * model.best.accuracy:
            gains.append(f"{better:.3g} of {model.name}'s accuracy")
    if points > _WORTH_SHOWING:
        gains.append(f"{points:.3g} points of the objective")
    return ", ".join(gains)


def _kw(power_w: float) -> str:
    return f"{1e-3 * power_w:.3g} kW"

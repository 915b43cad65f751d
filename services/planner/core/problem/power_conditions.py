"""Conditions of a plan that a site's power budget limits."""

from collections.abc import Iterator

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.planner.core.model import Configuration, Problem, Score
from services.planner.core.problem.site_power import idle_w, sites_over


def power_conditions(
    problem: Problem, configuration: Configuration, score: Score
) -> Iterator[Condition]:
    """Yield the sites whose power budget limits a plan, with the setting or event it is from.

    Args:
        problem: The problem.
        configuration: The configuration.
        score: Its score.
    """
    over = {site.name for site in sites_over(problem, score.site_w)}
    for site in problem.sites:
        subject, budget = f"site/{site.name}", f"the power budget of {_kw(site.limit_w)}"
        least_w, planned_w = idle_w(problem, site), score.site_w.get(site.name, 0.0)
        if site.limit_w < least_w:
            why = (
                f"{site.name}: {budget} is below the {_kw(least_w)} that its nodes draw without "
                "work: nothing is served there"
            )
            yield Condition(ConditionKind.POWER_BELOW_IDLE, subject, why, site.setting)
        elif site.name in over:
            why = f"{site.name}: {budget} is exceeded: the plan needs {_kw(planned_w)}"
            yield Condition(ConditionKind.POWER_LIMITED, subject, why, site.setting)
        elif site.name in configuration.limited:
            why = (
                f"{site.name}: {budget} limits the plan: it draws {_kw(planned_w)}, and would "
                f"draw {_kw(configuration.limited[site.name])} without"
            )
            yield Condition(ConditionKind.POWER_LIMITED, subject, why, site.setting)


def _kw(power_w: float) -> str:
    return f"{1e-3 * power_w:.3g} kW"

"""Power budgets in force as limits of a plan: with what its site draws beside the plan's GPUs."""

from collections.abc import Iterable
from datetime import datetime

from services.planner.core.fleet import Fleet, Node
from services.planner.core.model import Gpu, SiteLimit
from services.planner.core.power.budgets import PowerBudgets


def site_limits(
    budgets: PowerBudgets, now: datetime, fleet: Fleet, gpus: Iterable[Gpu], now_s: float
) -> tuple[SiteLimit, ...]:
    """Return the limits of a plan, in order of the sites' names.

    Hosts draw `host_power_w`. GPUs that are no longer planned on, as they leave, idle.

    Args:
        budgets: Budgets of all sites.
        now: Time, UTC.
        fleet: The fleet.
        gpus: GPUs of the plan.
        now_s: Monotonic time, s.
    """
    in_force = budgets.in_force(now)
    if not in_force:
        return ()
    planned = {gpu.uuid for gpu in gpus}
    nodes = tuple(fleet.nodes(now_s))
    return tuple(
        SiteLimit(
            name,
            (1.0 - budgets.margin(name)) * budget.limit_w,
            budget.setting,
            sum(
                _beside_w(fleet, name, node, planned)
                for node in nodes
                if fleet.sites[name].has(node.name)
            ),
        )
        for name, budget in sorted(in_force.items())
    )


def _beside_w(fleet: Fleet, site: str, node: Node, planned: set[str]) -> float:
    idle_w = sum(gpu.type.idle_power_w for gpu in node.gpus if gpu.uuid not in planned)
    return fleet.pue(node.name) * (fleet.sites[site].host_power_w + idle_w)

"""The lowest power that a site can reach, beside its budgets, also those of later."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.planner.core.power.budgets import PowerBudget
from services.planner.core.power.shares import NodeDraw


def lowest_wall_w(nodes: Sequence[NodeDraw]) -> float:
    """Return the power at the wall that remains where a site serves nothing, W.

    Nodes that cannot be limited draw on.
    """
    return sum(
        node.wall_w if node.fixed else node.pue * (node.host_w + node.idle_w) for node in nodes
    )


def unreachable(
    budget: PowerBudget, nodes: Sequence[NodeDraw], now: datetime
) -> Iterator[Condition]:
    """Yield the condition of a budget that no plan can keep.

    Where one is in force and all nodes can be limited, the plan itself says so.

    Args:
        budget: The strictest budget of the site, in force or ahead.
        nodes: The nodes of the site.
        now: Time, UTC.
    """
    lowest_w = lowest_wall_w(nodes)
    fixed_w = sum(node.wall_w for node in nodes if node.fixed)
    ahead = budget.start > now
    if budget.limit_w >= lowest_w or not (ahead or fixed_w):
        return
    begins = f" from {budget.start:%Y-%m-%d %H:%M} UTC" if ahead else ""
    fixed = (
        f", {_kw(fixed_w)} of it at nodes that cannot be limited ({_names(nodes)}: their agents "
        "are away, or may only read)"
        if fixed_w
        else ""
    )
    yield Condition(
        ConditionKind.POWER_BELOW_IDLE,
        f"site/{budget.site}",
        f"{budget.site}: the power budget of {_kw(budget.limit_w)}{begins} cannot be reached: "
        f"without any work its nodes draw {_kw(lowest_w)}{fixed}",
        budget.setting,
    )


def _names(nodes: Sequence[NodeDraw]) -> str:
    names = sorted(node.name for node in nodes if node.fixed)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _kw(power_w: float) -> str:
    return f"{1e-3 * power_w:.3g} kW"

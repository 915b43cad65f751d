"""Carbon budgets in words."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from cinquefoil.planner.v1.planner_pb2 import CarbonBudget

_PRICED: Final = 2
"""Most models whose price is named."""


def budget_sentence(
    budget: CarbonBudget, price_gco2e: Mapping[str, float], now: datetime | None = None
) -> str:
    """Return what a budget has left, what a point of accuracy is worth, and where it leads.

    Args:
        budget: The budget.
        price_gco2e: Emissions that a point of a request's accuracy is worth, by model.
        now: Time, UTC.
    """
    start, end = budget.start.ToDatetime(UTC), budget.end.ToDatetime(UTC)
    gone = (max(start, min(end, now or datetime.now(UTC))) - start) / (end - start)
    spent_kg = budget.spent_gco2e / 1e3
    named = ", ".join((*budget.models, *budget.sites))
    of = f" of {named}" if named else ""
    used = f"carbon budget{of}: {spent_kg:.3g} of {budget.kg:.3g} kg used"
    parts = [f"{used}, {100 * gone:.0f} % of the {budget.per} gone"]
    if budget.HasField("expected_gco2e"):
        parts.append(f"at this rate {budget.expected_gco2e / 1e3:.3g} kg")
    worth = [
        f"{1e6 * grams:.3g} g in a million requests of {model}"
        for model, grams in sorted(price_gco2e.items())
        if not budget.models or model in budget.models
    ][:_PRICED]
    if worth:
        parts.append(f"a point of accuracy is worth {', '.join(worth)}")
    if budget.short:
        parts.append("it cannot be kept")
    return "; ".join(parts)

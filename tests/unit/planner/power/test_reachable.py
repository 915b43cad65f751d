"""Budgets that cannot be reached are named at once, with the lowest power that can be."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from services.planner.core.power.budgets import PowerBudget
from services.planner.core.power.reachable import unreachable
from services.planner.core.power.shares import NodeDraw

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODES = [NodeDraw(f"node-{i}", 1.5, 100.0, 60.0, 800.0, 500.0) for i in range(2)]


def budget(limit_w: float, start: datetime = NOW + HOUR) -> PowerBudget:
    return PowerBudget("hall", limit_w, "grid event e", start, start + HOUR)


def said(limit_w: float, nodes: list[NodeDraw] = NODES, start: datetime = NOW + HOUR) -> str:
    return " ".join(str(each) for each in unreachable(budget(limit_w, start), nodes, NOW))


def test_a_budget_ahead_that_is_too_low_names_the_lowest_and_its_setting() -> None:
    """2 x 1.5 x (100 + 60) W remain; just above that is fine."""
    text = said(470.0)
    for part in ("hall", "0.47 kW", "from 2030-01-01 01:00 UTC", "0.48 kW", "grid event e"):
        assert part in text
    assert not said(480.0)


def test_nodes_that_cannot_be_limited_are_named_while_it_is_in_force() -> None:
    """Their power is part of the lowest; without them the plan says it."""
    away = [NODES[0], replace(NODES[1], fixed=True)]
    text = said(1000.0, away, NOW - HOUR / 2)
    assert "1.14 kW" in text
    assert "0.9 kW" in text
    assert "node-1" in text
    assert not said(470.0, NODES, NOW - HOUR / 2)

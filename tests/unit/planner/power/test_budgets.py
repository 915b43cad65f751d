"""Power budgets of sites in time."""

from datetime import UTC, datetime, timedelta

import pytest

from services.kit.config import Site
from services.planner.core.power.budgets import MAX_BUDGETS, PowerBudget, PowerBudgets

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HALL = Site(nodes=("a",), power_budget_w=1000.0)


def event(limit_w: float, start: int, end: int, site: str = "hall") -> PowerBudget:
    return PowerBudget(site, limit_w, "event 1", NOON + start * HOUR, NOON + end * HOUR)


def test_the_strictest_budget_counts_while_it_lasts() -> None:
    """An event below the file's budget counts from its start until before its end."""
    budgets = PowerBudgets({"hall": HALL})
    assert budgets.set_events([event(600, 1, 3), event(800, 0, 4), event(1, 0, 9, "unknown")])
    limits = [budgets.in_force(NOON + hour * HOUR)["hall"].limit_w for hour in (-1, 0, 1, 3, 4)]
    assert limits == [1000, 800, 600, 800, 1000]
    assert budgets.in_force(NOON - HOUR)["hall"].setting == "sites.hall.power_budget_w"
    assert budgets.in_force(NOON).keys() == {"hall"}


def test_budgets_of_a_time_to_come_count() -> None:
    """Of a stretch of time, the strictest budget that is in force anywhere in it counts."""
    budgets = PowerBudgets({"hall": HALL}, (event(600, 1, 3),))
    assert budgets.in_force(NOON, NOON + HOUR)["hall"].limit_w == 1000
    assert budgets.in_force(NOON, NOON + 2 * HOUR)["hall"].limit_w == 600


def test_a_budget_below_idle_power_counts_once_it_has_begun() -> None:
    """Ahead of time it would only refuse requests; one that can be kept counts ahead beside it."""
    lowest_w = {"hall": 500.0}
    budgets = PowerBudgets({"hall": HALL}, (event(400, 1, 3), event(600, 1, 3)))
    assert budgets.in_force(NOON, NOON + 2 * HOUR, lowest_w)["hall"].limit_w == 600
    assert budgets.in_force(NOON + HOUR, NOON + 2 * HOUR, lowest_w)["hall"].limit_w == 400


def test_the_next_change_is_known() -> None:
    """The planner sleeps until a budget begins or ends, and for ever without events."""
    budgets = PowerBudgets({"hall": HALL}, (event(600, 1, 3),))
    assert [budgets.changes_s(NOON + hour * HOUR) for hour in (0, 1, 2)] == [3600, 7200, 3600]
    assert budgets.changes_s(NOON + 3 * HOUR) == float("inf")


@pytest.mark.parametrize("limit_w", [-1.0, float("nan"), float("inf")])
def test_a_limit_that_is_no_power_is_refused(limit_w: float) -> None:
    """Nothing of a refused list is kept."""
    budgets = PowerBudgets({"hall": HALL})
    with pytest.raises(ValueError, match="limit_w of event 1"):
        budgets.set_events([event(limit_w, 0, 1)])
    assert not budgets.events


def test_events_are_bounded() -> None:
    """More budgets than one search may take are refused."""
    with pytest.raises(ValueError, match=str(MAX_BUDGETS)):
        PowerBudgets().set_events([event(1, 0, 1)] * (MAX_BUDGETS + 1))


def test_the_time_until_a_plan_must_keep_a_budget_is_known() -> None:
    """It is before the budget by as much as plans are ahead; one without a start has none."""
    budgets = PowerBudgets({"hall": HALL}, (event(600, 2, 3), PowerBudget("hall", 700.0, "lost")))
    assert budgets.changes_s(NOON, HOUR / 2) == 1.5 * 3600
    assert budgets.changes_s(NOON + 2 * HOUR, HOUR / 2) == 1800
    assert budgets.changes_s(NOON + 3 * HOUR, HOUR / 2) == float("inf")

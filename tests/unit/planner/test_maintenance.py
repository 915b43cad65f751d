"""When plans are held back: freezes and maintenance windows."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cinquefoil.planner.v1.records import Hold
from services.kit.config import MaintenanceWindow, Objective
from services.planner.core.maintenance import Freeze, hold, holding

SATURDAY = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NIGHT = MaintenanceWindow(days=("sat", "sun"), start="23:00", length_s=2 * 3600)
"""On Saturdays and Sundays, over midnight."""


def test_without_freeze_and_windows_nothing_is_held_back() -> None:
    assert hold(None, (), SATURDAY) is None


def test_a_freeze_says_until_when_by_whom_and_why() -> None:
    freeze = Freeze(SATURDAY + timedelta(hours=1), "sales", "spiffe://cinquefoil/operator/ada")

    assert hold(freeze, (), SATURDAY) == Hold(
        freeze.until, "frozen by spiffe://cinquefoil/operator/ada: sales"
    )


def test_a_freeze_ends_on_time() -> None:
    freeze = Freeze(SATURDAY)

    assert hold(freeze, (), SATURDAY) is None
    assert hold(freeze, (), SATURDAY - timedelta(seconds=1)) == Hold(SATURDAY, "frozen")


def test_a_freeze_holds_within_a_window_too() -> None:
    night = SATURDAY.replace(hour=23, minute=30)

    assert hold(None, (NIGHT,), night) is None
    assert hold(Freeze(night + timedelta(days=1)), (NIGHT,), night) is not None


def test_outside_of_the_windows_plans_wait_for_the_next_one() -> None:
    """After Sunday's window, which ends on Monday, comes Saturday's."""
    monday = datetime(2026, 11, 23, 1, 0, tzinfo=UTC)

    assert hold(None, (NIGHT,), monday - timedelta(seconds=1)) is None
    assert hold(None, (NIGHT,), monday) == Hold(
        datetime(2026, 11, 28, 23, 0, tzinfo=UTC), "outside the maintenance windows"
    )


@given(seconds=st.integers(0, 14 * 86_400), length_s=st.floats(1, 86_400))
def test_a_window_is_open_for_its_length_and_what_is_held_ends_when_one_opens(
    seconds: int, length_s: float
) -> None:
    window = MaintenanceWindow(days=("wed",), start="06:30", length_s=length_s)
    now = SATURDAY + timedelta(seconds=seconds)
    week_s = (now - datetime(2026, 11, 18, 6, 30, tzinfo=UTC)).total_seconds() % (7 * 86_400)

    found = hold(None, (window,), now)

    assert (found is None) == (week_s < length_s)
    if found is not None:
        assert now < found.until <= now + timedelta(days=7)
        assert hold(None, (window,), found.until) is None


def test_yaml_may_write_the_time_without_quotes() -> None:
    """YAML 1.1 reads 22:30 as 22 x 60 + 30."""
    window = MaintenanceWindow(**yaml.safe_load("{start: 22:30, length_s: 60}"))

    assert (window.start, len(window.days)) == ("22:30", 7)


@pytest.mark.parametrize("start", ["24:00", "9:00", "noon", 1440])
def test_what_is_not_a_time_of_day_is_refused(start: object) -> None:
    with pytest.raises(ValidationError):
        MaintenanceWindow(start=start, length_s=60)


def test_changes_cost_more_than_any_goal_gains_while_plans_are_held_back() -> None:
    """CLOVER's f is at most 100 points each for carbon and accuracy."""
    objective = holding(Objective(carbon_weight=0.3))

    assert (objective.switch_price, objective.layout_price) == (100.0, 100.0)
    assert objective.carbon_weight == 0.3

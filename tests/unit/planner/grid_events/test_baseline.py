"""Baselines: similar days, those with events left out, and the day's own adjustment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from services.planner.core.grid_events.baseline import Course, baseline

START = datetime(2026, 3, 18, 17, tzinfo=UTC)  # a Wednesday
END = START + timedelta(hours=3)
DAY_S = 86_400
DAY_BEFORE = START.date() - timedelta(days=1)


def hours(power_w: Callable[[datetime], float]) -> dict[int, float]:
    """Return power of the hours of 30 days up to an hour before the event."""
    first = START - timedelta(days=30)
    found = (first + timedelta(hours=n) for n in range(30 * 24))
    return {int(at.timestamp()): power_w(at) for at in found}


def made(hours_w: dict[int, float], *, lately_w: float | None = 700.0) -> Course | None:
    return baseline(
        hours_w,
        START,
        END,
        known_until=START,
        lately_w=lately_w,
    )


def test_working_days_of_the_same_hours_count() -> None:
    course = made(hours(lambda at: 1000.0 + at.hour if at.weekday() < 5 else 1.0))

    assert course is not None
    assert "last 10 similar days" in course.method
    assert list(course.hours_w.values()) == pytest.approx([1017, 1018, 1019])


def test_days_that_lack_an_hour_are_left_out() -> None:
    known_w = hours(lambda at: 10.0 if at.date() == DAY_BEFORE else 1000.0)
    del known_w[int(START.timestamp()) - DAY_S + 3600]

    course = made(known_w)

    assert course is not None
    assert "last 10 similar days" in course.method
    assert course.mean_w == pytest.approx(1000)


@pytest.mark.parametrize(("ratio", "factor"), [(1.1, 1.1), (3.0, 1.2), (0.1, 0.8)])
def test_the_day_itself_adjusts_by_at_most_a_fifth(ratio: float, factor: float) -> None:
    course = made(hours(lambda at: 1000.0 * (ratio if at.date() == START.date() else 1)))

    assert course is not None
    assert course.mean_w == pytest.approx(1000 * factor)


def test_without_similar_days_the_power_before_counts_if_it_is_known() -> None:
    course = made({})

    assert course is not None
    assert course.mean_w == 700
    assert course.at(END.timestamp() - 1) == 700
    assert made({}, lately_w=None) is None

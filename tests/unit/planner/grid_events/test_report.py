"""Reports of grid events: power shed, minutes above the line, and requests missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cinquefoil.planner.v1.records import (
    GridEvent,
    HistoryPoint,
    ModelHistory,
    SiteHistory,
    ZoneHistory,
)
from services.planner.core.grid_events.baseline import Course, hour_of
from services.planner.core.grid_events.report import report

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
EVENT = GridEvent("e", "hall", 750.0, start=START, end=START + timedelta(minutes=4))


def minute(n: int, power_w: float | None, late: int = 0) -> HistoryPoint:
    sites = {} if power_w is None else {"hall": SiteHistory(60, power_w * 60)}
    return HistoryPoint(
        since=START + timedelta(minutes=n),
        sites=sites,
        zones={"Z": ZoneHistory(60, 60 * 360)},
        models={"digits": ModelHistory(answered=100, late=late)},
    )


def test_a_report_says_what_was_promised_shed_and_missed() -> None:
    history = [minute(-2, 1000), minute(-1, 1000), minute(0, 800, late=5), minute(1, 740)]
    history += [minute(2, None), minute(3, 700)]
    course = Course({hour_of(START.timestamp()): 1000.0}, "m")

    found = report(EVENT, history, 60, course, "Z", START + timedelta(hours=1))

    assert [point.metered_w for point in found.points] == [1000, 1000, 800, 740, None, 700]
    assert (found.metered_points, found.event_points, found.points_above) == (3, 4, 1)
    assert found.shed_share_min == pytest.approx(200 / 250)
    assert found.energy_j == pytest.approx(60 * 2240)
    assert found.shed_j == pytest.approx(60 * 760)
    assert found.carbon_gco2e == pytest.approx(60 * 2240 / 3.6e6 * 360)
    model = found.models[0]
    assert (model.answered, model.late, model.answered_before) == (400, 5, 200)


def test_without_baseline_or_meter_a_report_claims_nothing() -> None:
    found = report(EVENT, [minute(0, None)], 60, None, "Z", START + timedelta(minutes=2))

    assert (found.shed_j, found.shed_share_min, found.carbon_gco2e) == (None, None, None)
    assert (found.metered_points, found.baseline_method) == (0, "")

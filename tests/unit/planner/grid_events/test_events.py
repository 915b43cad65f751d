"""Grid events: what is refused and by which field, the budgets in time, and bounded numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1.records import GridEvent, GridEventStatus
from services.kit.config import Grid, Site
from services.kit.errors import AlreadyExists, FailedPrecondition, ResourceExhausted, ServiceError
from services.planner.core.grid_events.events import (
    MAX_OPEN,
    MAX_OVER,
    Baseline,
    GridEvents,
    budgets_of,
    checked,
    limit_at,
    status_of,
    with_limit,
)
from services.planner.core.power.budgets import PowerBudgets

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
EVENT = GridEvent("e1", "hall", 500.0, start=NOW + HOUR, end=NOW + 3 * HOUR, source="operator")
SITES = {"hall": Site(nodes=("node-*",))}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"event_id": "a b"}, "event.event_id"),
        ({"event_id": "x" * 201}, "event.event_id"),
        ({"site": "cellar"}, "event.site"),
        ({"limit_w": -1.0}, "event.limit_w"),
        ({"limit_w": math.nan}, "event.limit_w"),
        ({"limit_w": math.inf}, "event.limit_w"),
        ({"limit_w": None}, "event.limit_w"),
        ({"limit_share": 0.5}, "event.limit_share"),
        ({"limit_w": None, "limit_share": 1.5}, "event.limit_share"),
        ({"limit_w": None, "level": 9}, "event.level"),
        ({"limit_w": None, "change_w": 5.0}, "event.change_w"),
        ({"limit_w": None, "change_w": math.nan}, "event.change_w"),
        ({"start": NOW - 2 * HOUR, "end": NOW - HOUR}, "event.end"),
        ({"end": NOW + HOUR}, "event.end"),
        ({"end": NOW + 30 * HOUR}, "event.end"),
        ({"start": NOW + 800 * HOUR, "end": NOW + 801 * HOUR}, "event.start"),
        ({"ramp_s": -1.0}, "event.ramp_s"),
        ({"ramp_s": math.nan}, "event.ramp_s"),
        ({"ramp_s": 8000.0}, "event.ramp_s"),
    ],
)
def test_an_order_that_is_not_allowed_is_refused_by_its_field(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        checked(replace(EVENT, **change), Grid(), SITES, NOW)
    assert caught.value.field == field


def test_an_order_without_a_start_begins_now() -> None:
    order = replace(EVENT, start=GridEvent().start)

    assert checked(order, Grid(), SITES, NOW).start == NOW


@pytest.mark.parametrize(
    ("order", "limit_w"),
    [({"limit_share": 0.75}, 600.0), ({"level": 2}, 600.0), ({"change_w": -900.0}, 0.0)],
)
def test_relative_limits_rest_on_the_baseline(order: dict[str, Any], limit_w: float) -> None:
    event = replace(EVENT, limit_w=None, **order)

    assert with_limit(event, Grid(), Baseline(800.0, "m")).limit_w == limit_w
    with pytest.raises(FailedPrecondition):
        with_limit(event, Grid(), None)


@given(
    baseline_w=st.floats(0, 1e6),
    limit_w=st.floats(0, 1e6),
    ramp_s=st.floats(0, 7200),
    at_s=st.floats(0, 7199),
)
def test_budgets_cover_an_event_without_gaps_and_are_never_above_its_ramp(
    baseline_w: float, limit_w: float, ramp_s: float, at_s: float
) -> None:
    event = replace(EVENT, limit_w=limit_w, baseline_w=baseline_w, ramp_s=ramp_s)
    budgets = list(budgets_of(event))

    assert budgets[0].start == event.start
    assert budgets[-1].end == event.end
    assert all(a.end == b.start for a, b in itertools.pairwise(budgets))
    done = 1.0 if ramp_s == 0 else min(at_s / ramp_s, 1.0)
    line_w = max(baseline_w, limit_w) + (limit_w - max(baseline_w, limit_w)) * done
    assert limit_at(event, event.start + timedelta(seconds=at_s)) <= line_w * (1 + 1e-9) + 1e-3


def test_of_overlapping_events_the_strictest_counts_until_it_is_cancelled() -> None:
    events = GridEvents()
    events.put(EVENT, NOW)
    events.put(replace(EVENT, event_id="e2", limit_w=300.0), NOW)
    at = NOW + 2 * HOUR

    def limit_w() -> float:
        known = PowerBudgets(SITES)
        known.set_events(events.budgets(at))
        return known.in_force(at)["hall"].limit_w

    assert limit_w() == 300
    assert events.cancel("e2", at).cancelled_at == at
    assert limit_w() == 500


def test_where_an_event_stands_follows_time_and_orders() -> None:
    assert status_of(EVENT, NOW) is GridEventStatus.ANNOUNCED
    assert status_of(EVENT, NOW + HOUR) is GridEventStatus.ACTIVE
    assert status_of(EVENT, NOW + 3 * HOUR) is GridEventStatus.ENDED
    assert status_of(replace(EVENT, cancelled_at=NOW), NOW) is GridEventStatus.CANCELLED


def test_the_number_of_events_is_bounded() -> None:
    events = GridEvents()
    for n in range(MAX_OPEN):
        events.put(replace(EVENT, event_id=f"e{n}"), NOW)
    with pytest.raises(ResourceExhausted):
        events.put(replace(EVENT, event_id="one-more"), NOW)
    later = NOW + 24 * HOUR
    for n in range(2 * MAX_OVER):
        event = replace(EVENT, event_id=f"f{n}", start=later, end=later + HOUR)
        events.put(event, later)
        events.cancel(event.event_id, later)
    events.put(replace(EVENT, event_id="last", end=later + HOUR), later)
    assert len(events.events) == MAX_OVER + 1


def test_an_event_changes_only_for_its_own_source_while_it_is_not_over() -> None:
    events = GridEvents()
    events.put(replace(EVENT, announced_at=NOW), NOW)

    changed = events.put(replace(EVENT, limit_w=400.0, announced_at=NOW + HOUR), NOW + HOUR)

    assert (changed.limit_w, changed.announced_at) == (400, NOW)
    with pytest.raises(AlreadyExists):
        events.put(replace(EVENT, source="openadr"), NOW)
    with pytest.raises(AlreadyExists):
        events.put(EVENT, NOW + 4 * HOUR)

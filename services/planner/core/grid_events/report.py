"""Report of a grid event: power by minute, promised and shed, and the objectives meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.planner.v1.records import (
    GridEvent,
    GridEventPoint,
    GridEventReport,
    HistoryPoint,
    ModelInEvent,
    SiteHistory,
)
from services.kit.units import J_PER_KWH
from services.planner.core.grid_events.baseline import Course
from services.planner.core.grid_events.events import limit_at

LEAD: Final = timedelta(hours=1)
"""Longest time before an event that its report shows."""


def window(event: GridEvent, now: datetime) -> tuple[datetime, datetime, datetime]:
    """Return the start of a report, the event's start, and its end or now."""
    end = min(event.end, now, event.cancelled_at or event.end)
    return event.start - min(LEAD, end - event.start), event.start, end


def report(  # noqa: PLR0913, PLR0917 - each is a fact of the past
    event: GridEvent,
    history: Sequence[HistoryPoint],
    step_s: int,
    course: Course | None,
    zone: str,
    now: datetime,
) -> GridEventReport:
    """Return the report of an event that has begun.

    Args:
        event: The event.
        history: Points of its window, in order of time.
        step_s: Their length, s.
        course: Its baseline; None: not known.
        zone: Zone of the site, whose intensity counts.
        now: Time, UTC.
    """
    begin, start, end = window(event, now)
    step = timedelta(seconds=step_s)
    points = [
        _point(event, each, step, course, zone)
        for each in history
        if begin - step < each.since < end
    ]
    # A minute that the event begins or ends in is neither with nor without it.
    within = [each for each in points if start <= each.since and each.since + step <= end]
    metered = [each for each in within if each.metered_w is not None]
    limited = [(each, each.metered_w) for each in metered if each.metered_w is not None]
    return GridEventReport(
        event=event,
        step_s=step_s,
        points=tuple(points),
        baseline_method="" if course is None else course.method,
        models=tuple(_models(history, begin, start, end)),
        energy_j=sum(power_w * step_s for _, power_w in limited),
        shed_j=_shed_j(limited, step_s),
        carbon_gco2e=_carbon_gco2e(limited, step_s),
        shed_share_min=min(_shares(limited), default=None),
        metered_points=len(limited),
        event_points=int((end - start) / step),
        zone=zone,
        points_above=sum(
            each.limit_w is not None and power_w > each.limit_w for each, power_w in limited
        ),
    )


def _point(
    event: GridEvent, each: HistoryPoint, step: timedelta, course: Course | None, zone: str
) -> GridEventPoint:
    site = each.sites.get(event.site, SiteHistory())
    grid = each.zones.get(zone)
    last = each.since + step - timedelta(microseconds=1)
    limit_w = limit_at(event, last)
    return GridEventPoint(
        since=each.since,
        metered_w=site.energy_j / site.metered_s if site.metered_s else None,
        baseline_w=None if course is None else course.at(each.since.timestamp()),
        limit_w=limit_w if limit_w < float("inf") else None,
        intensity_gco2e_per_kwh=grid.intensity_gco2e_s_per_kwh / grid.known_s
        if grid and grid.known_s
        else None,
    )


Metered = Iterable[tuple[GridEventPoint, float]]
"""Points with their metered power, W."""


def _shed_j(points: Metered, step_s: int) -> float | None:
    known = [
        (each.baseline_w - power_w) * step_s
        for each, power_w in points
        if each.baseline_w is not None
    ]
    return sum(known) if known else None


def _carbon_gco2e(points: Metered, step_s: int) -> float | None:
    pairs = [(power_w, each.intensity_gco2e_per_kwh) for each, power_w in points]
    if not pairs or any(intensity is None for _, intensity in pairs):
        return None
    return sum(power_w * step_s / J_PER_KWH * (intensity or 0.0) for power_w, intensity in pairs)


def _shares(points: Metered) -> Iterator[float]:
    """Yield the shed power of points as a share of what was promised."""
    for each, power_w in points:
        if each.baseline_w is not None and each.limit_w is not None:
            promised_w = each.baseline_w - each.limit_w
            if promised_w > 0:
                yield (each.baseline_w - power_w) / promised_w


def _models(
    history: Sequence[HistoryPoint], begin: datetime, start: datetime, end: datetime
) -> Iterator[ModelInEvent]:
    """Yield each model's requests in the event, and in the time shown before it."""
    within = _counts(each for each in history if start <= each.since < end)
    before = _counts(each for each in history if begin <= each.since < start)
    for name in sorted(within.keys() | before.keys()):
        yield ModelInEvent(name, *within.get(name, (0, 0, 0)), *before.get(name, (0, 0, 0)))


def _counts(points: Iterable[HistoryPoint]) -> Mapping[str, tuple[int, int, int]]:
    found: dict[str, tuple[int, int, int]] = {}
    for point in points:
        for name, model in point.models.items():
            answered, late, refused = found.get(name, (0, 0, 0))
            found[name] = answered + model.answered, late + model.late, refused + model.refused
    return found

"""Grid events that a planner keeps: what is accepted, where each stands, and its power budgets."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from cinquefoil.planner.v1.records import GridEvent, GridEventStatus
from services.kit.config import Grid
from services.kit.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from services.kit.segment import plain, some_of
from services.planner.core.power.budgets import PowerBudget

MAX_OPEN: Final = 256
"""Most events that are not over."""

MAX_OVER: Final = 256
"""Most events that are kept after their end, for reports."""

RAMP_STEPS: Final = 5
"""Steps in which a limit falls: each may cause a plan."""

_UNSET: Final = datetime.fromtimestamp(0, UTC)
_MOST_W: Final = 1e9
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_RELATIVE: Final = ("limit_share", "level", "change_w")
_OVER: Final = (GridEventStatus.ENDED, GridEventStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Power that a site is expected to draw without an event.

    Attributes:
        power_w: Mean over the event, W.
        method: Method, for reports.
    """

    power_w: float
    method: str


def status_of(event: GridEvent, now: datetime) -> GridEventStatus:
    """Return where an event stands."""
    if event.cancelled_at is not None:
        return GridEventStatus.CANCELLED
    if now >= event.end:
        return GridEventStatus.ENDED
    return GridEventStatus.ACTIVE if now >= event.start else GridEventStatus.ANNOUNCED


def is_relative(event: GridEvent) -> bool:
    """Return whether an order's limit rests on the baseline."""
    return event.limit_w is None


def checked(event: GridEvent, settings: Grid, sites: Iterable[str], now: datetime) -> GridEvent:
    """Return an order with its start, if it is allowed.

    Args:
        event: The order.
        settings: Limits of events.
        sites: Sites of the deployment.
        now: Time, UTC.

    Raises:
        InvalidArgument: A field's value is not allowed.
        NotFound: There is no such site.
    """
    if not _ID.fullmatch(event.event_id):
        raise _at("event_id", f"1..200 letters, digits and ._:-, got {plain(event.event_id)!r}")
    if event.site not in (known := tuple(sites)):
        there = f"there is {some_of(known)}" if known else "the deployment file has no sites"
        raise NotFound.at("event.site", f"no site {plain(event.site)!r}; {there}")
    if event.start == _UNSET:
        event = replace(event, start=now)
    _check_limit(event, settings)
    _check_times(event, settings, now)
    if not 0 <= event.priority < 2**32:
        raise _at("priority", f"must be 0..4294967295, got {event.priority}")
    return event


def _check_limit(event: GridEvent, settings: Grid) -> None:
    given = [name for name in ("limit_w", "limit_share", "change_w") if _given(event, name)]
    given += ["level"] if event.level else []
    if len(given) != 1:
        raise _at(
            given[1] if given else "limit_w",
            f"one of limit_w, limit_share, level, change_w is required, got "
            f"{' and '.join(given) or 'none'}",
        )
    limit_w, share, change_w = event.limit_w, event.limit_share, event.change_w
    if limit_w is not None and not 0 <= limit_w <= _MOST_W:
        raise _at("limit_w", f"must be 0..{_MOST_W:g} W, got {limit_w:g}")
    if share is not None and not 0 <= share <= 1:
        raise _at("limit_share", f"must be 0..1 of the baseline, got {share:g}")
    if change_w is not None and not -_MOST_W <= change_w < 0:
        raise _at("change_w", f"must be below 0, at least {-_MOST_W:g} W, got {change_w:g}")
    if event.level and event.level not in settings.levels:
        known = some_of(map(str, settings.levels))
        raise _at("level", f"no level {event.level} in grid.levels; there is {known}")


def _given(event: GridEvent, name: str) -> bool:
    return getattr(event, name) is not None


def _check_times(event: GridEvent, settings: Grid, now: datetime) -> None:
    if event.end == _UNSET:
        raise _at("end", "required")
    if event.end <= event.start:
        raise _at("end", f"must be after its start, {event.start:%Y-%m-%d %H:%M:%S} UTC")
    if event.end <= now:
        raise _at("end", f"{event.end:%Y-%m-%d %H:%M:%S} UTC is in the past")
    length_s = (event.end - event.start).total_seconds()
    if length_s > settings.max_length_s:
        raise _at(
            "end",
            f"at most {settings.max_length_s:g} s after its start (grid.max_length_s), got "
            f"{length_s:g}",
        )
    ahead_s = (event.start - now).total_seconds()
    if ahead_s > settings.max_ahead_s:
        raise _at(
            "start", f"at most {settings.max_ahead_s:g} s ahead (grid.max_ahead_s), got {ahead_s:g}"
        )
    if not 0 <= event.ramp_s <= length_s:
        raise _at("ramp_s", f"must be 0..{length_s:g} s, the event's length, got {event.ramp_s:g}")


def _at(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument.at(f"event.{field}", problem)


def with_limit(event: GridEvent, settings: Grid, baseline: Baseline | None) -> GridEvent:
    """Return a checked order with its limit in watts, and its baseline.

    Raises:
        FailedPrecondition: The limit is relative, and there is no baseline.
    """
    if baseline is not None:
        event = replace(event, baseline_w=baseline.power_w, baseline_method=baseline.method)
    if not is_relative(event):
        return event
    if baseline is None:
        name = next(name for name in _RELATIVE if getattr(event, name) not in (None, 0))
        raise FailedPrecondition.at(
            f"event.{name}", f"no power of {event.site} has been metered yet: give limit_w"
        )
    if event.change_w is not None:
        return replace(event, limit_w=max(baseline.power_w + event.change_w, 0.0))
    share = settings.levels[event.level] if event.level else event.limit_share or 0.0
    return replace(event, limit_w=baseline.power_w * share)


class GridEvents:
    """Grid events by name, of bounded number.

    Attributes:
        events: Events, those that are over, too.
    """

    def __init__(self, events: Iterable[GridEvent] = ()) -> None:
        self.events: dict[str, GridEvent] = {event.event_id: event for event in events}

    def put(self, event: GridEvent, now: datetime) -> GridEvent:
        """Add a checked event with its limit, or replace that of its name; return it.

        Raises:
            AlreadyExists: It is another source's, or over.
            ResourceExhausted: Too many are not over.
        """
        known = self.events.get(event.event_id)
        if known is not None and known.source != event.source:
            raise AlreadyExists.at(
                "event.event_id", f"{event.event_id} is an event of {known.source} already"
            )
        if known is not None and status_of(known, now) in _OVER:
            raise AlreadyExists.at("event.event_id", f"{event.event_id} is over: take another name")
        if known is None and sum(1 for _ in self.open(now)) >= MAX_OPEN:
            raise ResourceExhausted.at("event", f"at most {MAX_OPEN} events that are not over")
        if known is not None:
            event = replace(event, announced_at=known.announced_at)
        self.events[event.event_id] = event
        self._trim(now)
        return event

    def cancel(self, event_id: str, now: datetime) -> GridEvent:
        """End an event now; return it.

        Raises:
            NotFound: There is no such event.
        """
        known = self.events.get(event_id)
        if known is None:
            raise NotFound.at("event_id", f"there is no grid event {plain(event_id)!r}")
        if status_of(known, now) not in _OVER:
            self.events[event_id] = known = replace(known, cancelled_at=now)
        return known

    def open(self, now: datetime) -> Iterator[GridEvent]:
        """Yield the events that are not over."""
        return (each for each in self.events.values() if status_of(each, now) not in _OVER)

    def listed(self, now: datetime, *, over: bool) -> list[GridEvent]:
        """Return events with their status, the latest start first; `over`: those past, too."""
        found = [replace(each, status=status_of(each, now)) for each in self.events.values()]
        found = [each for each in found if over or each.status not in _OVER]
        return sorted(found, key=lambda each: (each.start, each.event_id), reverse=True)

    def budgets(self, now: datetime) -> tuple[PowerBudget, ...]:
        """Return the power budgets of the events that are not over."""
        return tuple(budget for event in self.open(now) for budget in budgets_of(event))

    def _trim(self, now: datetime) -> None:
        over = [each for each in self.events.values() if status_of(each, now) in _OVER]
        for each in sorted(over, key=lambda each: each.end)[: max(len(over) - MAX_OVER, 0)]:
            del self.events[each.event_id]


def budgets_of(event: GridEvent) -> Iterator[PowerBudget]:
    """Yield an event's budgets in order of time: steps that are never above its ramp.

    Without a baseline above its limit it has no ramp.
    """
    limit_w = event.limit_w or 0.0
    setting = f"grid event {event.event_id}"
    at = event.start
    if event.ramp_s and event.baseline_w > limit_w:
        step = timedelta(seconds=event.ramp_s / RAMP_STEPS)
        for n in range(1, RAMP_STEPS):
            falling_w = event.baseline_w + (limit_w - event.baseline_w) * n / RAMP_STEPS
            yield PowerBudget(event.site, falling_w, setting, at, at + step)
            at += step
    yield PowerBudget(event.site, limit_w, setting, at, event.end)


def limit_at(event: GridEvent, at: datetime) -> float:
    """Return an event's limit at a time, W; infinite: none then."""
    if event.cancelled_at is not None and at >= event.cancelled_at:
        return math.inf
    return min(
        (each.limit_w for each in budgets_of(event) if each.start <= at < each.end),
        default=math.inf,
    )


def left_s(event: GridEvent, now: datetime) -> Mapping[str, float]:
    """Return the time until an event begins and ends, s."""
    return {
        "begins": (event.start - now).total_seconds(),
        "ends": (event.end - now).total_seconds(),
    }

"""Times when plans may not change what runs: a freeze, or outside maintenance windows.

Lost capacity is replaced even then: see `services.planner.core.triggers.loss`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from cinquefoil.planner.v1.records import Hold
from services.kit.config import MaintenanceWindow, Objective
from services.kit.config.planning import WEEKDAYS

_HELD_PRICE = 100.0
"""Objective points that no goal can gain: only what requests need is changed."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """An operator's order to reconfigure nothing.

    Attributes:
        until: End, UTC.
        reason: Reason in the operator's words.
        principal: Identity of the operator; "": identities are not checked.
    """

    until: datetime
    reason: str = ""
    principal: str = ""


def hold(freeze: Freeze | None, windows: Iterable[MaintenanceWindow], now: datetime) -> Hold | None:
    """Return the current hold on reconfigurations, or None.

    Args:
        freeze: The last freeze ordered; it may have ended.
        windows: Maintenance windows; empty: reconfigurations are always allowed.
        now: Now, UTC.

    Returns:
        The freeze while it lasts, else the time outside windows; its end disregards what comes
        after.
    """
    if freeze is not None and now < freeze.until:
        by = f" by {freeze.principal}" if freeze.principal else ""
        why = f": {freeze.reason}" if freeze.reason else ""
        return Hold(freeze.until, f"frozen{by}{why}")
    openings = [each for window in windows for each in _openings(window, now)]
    if not openings or any(opens <= now for opens, _ in openings):
        return None
    return Hold(min(opens for opens, _ in openings), "outside the maintenance windows")


def holding(objective: Objective) -> Objective:
    """Return an objective under which only what requests need is changed."""
    return objective.model_copy(update={"switch_price": _HELD_PRICE, "layout_price": _HELD_PRICE})


def _openings(window: MaintenanceWindow, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield opening and closing times of windows that have not closed, over a week and a day."""
    for days in range(-1, 8):
        date = now.date() + timedelta(days=days)
        if WEEKDAYS[date.weekday()] not in window.days:
            continue
        opens = datetime.combine(date, time.fromisoformat(window.start), UTC)
        closes = opens + timedelta(seconds=window.length_s)
        if now < closes:
            yield opens, closes

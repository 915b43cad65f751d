"""Times when plans may not change what runs: a freeze, or outside maintenance windows.

Lost capacity is replaced even then: see `services.planner.core.triggers.loss`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.records import Hold
from services.kit.config import MaintenanceWindow, Objective
from services.kit.config.planning import WEEKDAYS
from services.planner.core.plan import Pin

_HELD_PRICE = 100.0
"""Objective points that no goal can gain: only what requests need is changed."""

_ONLY_LOSSES = "only lost capacity is replaced"


@dataclass(frozen=True, slots=True)
class Freeze:
    """An operator's order to reconfigure nothing.

    Attributes:
        until: End, UTC.
        reason: Reason in the operator's words.
        principal: Identity of the operator; "": identities are not checked.
        since: Time of the order, UTC; None: unknown.
    """

    until: datetime
    reason: str = ""
    principal: str = ""
    since: datetime | None = None


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
        why = f": {freeze.reason}" if freeze.reason else ""
        by = f" by {freeze.principal}" if freeze.principal else ""
        return Hold(freeze.until, f"frozen{by}{why}")
    openings = [each for window in windows for each in _openings(window, now)]
    if not openings or any(opens <= now for opens, _ in openings):
        return None
    return Hold(min(opens for opens, _ in openings), "outside the maintenance windows")


@dataclass(frozen=True, slots=True)
class Held:
    """The holds on the planner, as they are now.

    Attributes:
        pinned: The plan that an operator pinned; None: none.
        pinned_at: Time of that order, UTC; None: unknown.
        freeze: The last freeze ordered, which may have ended; None: none.
        hold: The freeze, or the time until a maintenance window opens; None: neither.
    """

    pinned: Pin | None
    pinned_at: datetime | None
    freeze: Freeze | None
    hold: Hold | None

    def conditions(self, left_out: Iterable[str]) -> Iterator[Condition]:
        """Yield the condition of each hold, then those of the models that it leaves out.

        Args:
            left_out: Models of the deployment of which the active plan has no segment.
        """
        found = tuple(self._holds())
        for kind, why, until, setting in found:
            what = "no other plan is made" if kind is ConditionKind.PLAN_HELD else _ONLY_LOSSES
            yield Condition(kind, "plan", f"{why}: {what} {until}", setting)
        for kind, why, until, setting in found[:1]:
            for model in left_out:
                sentence = f"the plan has no segment of {model}, and gets none {until}: {why}"
                yield Condition(kind, f"model/{model}", sentence, setting)

    def _holds(self) -> Iterator[tuple[ConditionKind, str, str, str]]:
        """Yield kind, cause, end and setting of each hold, that which ends last first."""
        if self.pinned is not None:
            order = _order(self.pinned.principal, self.pinned_at)
            pinned = f"plan {self.pinned.version} is pinned{order}"
            yield ConditionKind.PLAN_HELD, pinned, "until it is unpinned", ""
        if self.hold is None:
            return
        until = f"until {self.hold.until:%Y-%m-%d %H:%M} UTC"
        if self.freeze is not None and self.hold.until == self.freeze.until:
            why = f" ({self.freeze.reason})" if self.freeze.reason else ""
            order = _order(self.freeze.principal, self.freeze.since)
            yield ConditionKind.FROZEN, f"plans are frozen{order}{why}", until, ""
        else:
            closed = "no maintenance window is open"
            yield (
                ConditionKind.MAINTENANCE,
                closed,
                f"{until}, when one opens",
                "planner.maintenance",
            )


def _order(principal: str, at: datetime | None) -> str:
    by = f" by {principal}" if principal else ""
    return by if at is None else f"{by} since {at:%Y-%m-%d %H:%M} UTC"


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

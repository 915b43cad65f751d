"""Release of waiting lines: when they may be sent, by the planner's last word.

While the planner is away its periods go on; after the last of them, and where no planner has said
anything for a while, lines are sent as the router has room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cinquefoil.planner.v1.records import ReleaseCause, ReleasePeriod, WaitingRelease
from services.kit.plurals import moment

PATIENCE_S: Final = 2.0
"""Time in which the planner's word is awaited once a model's lines wait, s."""

_ANY: Final = 2**31
_CALL_LINES: Final = 16.0
_BURST_S: Final = 5.0
"""Time whose rate may be sent at once, s."""

_CAUSES: Final = {
    ReleaseCause.CLEAN: "among the cleanest hours left",
    ReleaseCause.DUE: "its deadline leaves no later time",
    ReleaseCause.ROOM: "in room that interactive requests leave",
    ReleaseCause.LATER: "cleaner hours come before its deadline",
    ReleaseCause.NO_ROOM: "interactive requests leave no room",
    ReleaseCause.HELD: "less power is required",
    ReleaseCause.MEASURED: "for a moment, to measure the room",
}


def period_at(release: WaitingRelease, now: datetime) -> ReleasePeriod | None:
    """Return the period in force; None: all have passed, or there is none."""
    return next((each for each in release.periods if now < each.until), None)


def _fills(period: ReleasePeriod, due: datetime) -> bool:
    """Return whether requests due at a time may fill the room in a period."""
    return period.fill or (period.fill_due is not None and due <= period.fill_due)


def _later_rps(period: ReleasePeriod) -> float:
    """Return the most that may be sent of those due later: what peer regions take is no fill."""
    return period.later_rps + sum(each.rate_rps for each in period.away)


@dataclass(slots=True)
class Releases:
    """Decides what may be sent.

    Attributes:
        by_model: The planner's last word, by model.
        services: Batch services that share the rates.
        heard: Whether the planner ever said anything.
    """

    by_model: dict[str, WaitingRelease] = field(default_factory=dict)
    services: int = 1
    heard: bool = False
    _first_s: dict[str, float] = field(default_factory=dict)
    _tokens: dict[str, tuple[float, float]] = field(default_factory=dict)

    def hear(self, releases: Iterable[WaitingRelease], services: int) -> None:
        """Take the planner's word."""
        self.by_model = {each.model: each for each in releases}
        self.services, self.heard = max(services, 1), True

    def allowed(self, model: str, due: datetime, now: datetime, now_s: float) -> int:
        """Return how many lines may be sent now, as far as the planner is concerned.

        Args:
            model: Their model.
            due: When they are due.
            now: Time of day.
            now_s: Monotonic time, s.
        """
        release = self.by_model.get(model)
        if release is None:
            waited_s = now_s - self._first_s.setdefault(model, now_s)
            return _ANY if waited_s >= PATIENCE_S else 0
        self._first_s.pop(model, None)
        period = period_at(release, now)
        if period is None or _fills(period, due):
            return _ANY
        return int(self._left(model, _later_rps(period) / self.services, now_s))

    def sent(self, model: str, due: datetime, lines: int, now: datetime, now_s: float) -> None:
        """Count lines that were sent; arguments as of `allowed`."""
        release = self.by_model.get(model)
        period = None if release is None else period_at(release, now)
        if period is not None and not _fills(period, due):
            left = self._left(model, _later_rps(period) / self.services, now_s)
            self._tokens[model] = now_s, left - lines

    def _left(self, model: str, rate_rps: float, now_s: float) -> float:
        """Return the lines that a rate allows now: a bucket that fills with time."""
        since_s, left = self._tokens.get(model, (now_s, 0.0))
        left = min(left + rate_rps * (now_s - since_s), max(rate_rps * _BURST_S, _CALL_LINES))
        self._tokens[model] = now_s, left
        return left

    def wait_s(self, model: str, now: datetime) -> float:
        """Return the time until the planner's word on a model may change by itself, s."""
        release = self.by_model.get(model)
        period = None if release is None else period_at(release, now)
        if period is None:
            return 1.0
        if _later_rps(period) > 0:
            return min(max(self.services / _later_rps(period), 0.01), 1.0)
        return max((period.until - now).total_seconds(), 0.01)


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectation of the requests that are due by a time.

    Attributes:
        done_by: When they will have been answered; None: not within the periods.
        late: Requests that will be late.
        text: The same for people.
    """

    done_by: datetime | None
    late: int
    text: str


def expected(release: WaitingRelease, due: datetime, before: float, now: datetime) -> Expected:
    """Return what is expected of a batch.

    Args:
        release: The planner's word on its model.
        due: End of its window.
        before: Requests of the model that are due no later, its own included.
        now: The time.
    """
    late = [each for each in release.shortages if each.due <= due]
    done_by = _done_by(release.periods, before, now)
    if late:
        count = sum(each.late_requests for each in late)
        return Expected(done_by, count, "; ".join(each.text for each in late))
    period = period_at(release, now)
    if period is None:
        return Expected(done_by, 0, "it runs as the router has room")
    cause = _CAUSES.get(period.cause, "")
    if _runs(period, due):
        text = f"it runs: {cause}"
    else:
        following = next((e for e in release.periods if _runs(e, due) and e.since > now), None)
        until = "" if following is None else f" until {moment(following.since, now)} UTC"
        text = f"it waits{until}: {cause}"
    ends = "" if done_by is None else f"; done by {moment(done_by, now)} UTC"
    return Expected(done_by, 0, text + ends)


def _runs(period: ReleasePeriod, due: datetime) -> bool:
    """Return whether requests due at a time are to run in a period."""
    return period.rate_rps > 0 and (_fills(period, due) or _later_rps(period) > 0)


def _done_by(periods: Sequence[ReleasePeriod], requests: float, now: datetime) -> datetime | None:
    left = requests
    for each in periods:
        start = max(each.since, now)
        length_s = (each.until - start).total_seconds()
        if length_s <= 0 or each.rate_rps <= 0:
            continue
        if left <= each.rate_rps * length_s * (1 + 1e-6):
            return start + (each.until - start) * min(left / (each.rate_rps * length_s), 1.0)
        left -= each.rate_rps * length_s
    return None if math.isfinite(left) and left > 0 else now

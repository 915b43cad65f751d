"""Power that a site would draw without a grid event: the baseline that a utility settles by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Final

MAX_DAYS: Final = 10
MIN_DAYS: Final = 3
LOOK_BACK_D: Final = 45
"""Days that similar ones are sought in."""

_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_MAX_ADJUSTMENT: Final = 0.2
_ADJUSTED_FROM_H, _ADJUSTED_TO_H = 4, 1
"""Hours before the event whose power adjusts the baseline; a site may prepare in the last one."""


@dataclass(frozen=True, slots=True)
class Course:
    """Expected power over time.

    Attributes:
        hours_w: Mean power by start of the hour, Unix time, W.
        method: Method, for reports.
    """

    hours_w: Mapping[int, float]
    method: str

    def at(self, at_s: float) -> float | None:
        """Return the power at a time, Unix time, W; None: not known."""
        return self.hours_w.get(hour_of(at_s))

    @property
    def mean_w(self) -> float:
        """Mean over the hours, W."""
        return fmean(self.hours_w.values())


def hour_of(at_s: float) -> int:
    """Return the start of the hour of a time, Unix times, s."""
    return int(at_s) // _HOUR_S * _HOUR_S


def baseline(
    hours_w: Mapping[int, float],
    start: datetime,
    end: datetime,
    *,
    known_until: datetime,
    lately_w: float | None,
) -> Course | None:
    """Return the expected power of the hours of an event; None: nothing is known.

    Mean of the same hours of the last ten similar days (working days, or weekends) without an
    event, scaled by the event's own day, at most by a fifth. With fewer than three such days: the
    power just before.

    Args:
        hours_w: Metered mean power by start of the hour, Unix time, W, without hours of events.
        start: Start of the event.
        end: End of the event.
        known_until: Time up to which the event's own day may adjust the baseline: that of its
            announcement or its start, whichever is earlier.
        lately_w: Mean power just before `known_until`, W; None: not known.

    Source: CAISO tariff, section 4.13.4, "ten of ten" customer load baseline with adjustment.
    """
    wanted = range(hour_of(start.timestamp()), int(end.timestamp()), _HOUR_S)
    days = [
        day
        for day in range(1, LOOK_BACK_D + 1)
        if _similar(start, day)
        and all(hour - day * _DAY_S in hours_w for hour in wanted)
        and wanted.stop - day * _DAY_S <= known_until.timestamp() + _HOUR_S
    ][:MAX_DAYS]
    if len(days) < MIN_DAYS:
        if lately_w is None:
            return None
        return Course(dict.fromkeys(wanted, lately_w), "metered mean before the event")
    factor = _adjustment(hours_w, days, min(known_until, start))
    course = {hour: factor * fmean(hours_w[hour - day * _DAY_S] for day in days) for hour in wanted}
    return Course(
        course,
        f"mean of the same hours of the last {len(days)} similar days without an event, adjusted "
        f"by {factor:.3f} on the day",
    )


def _similar(start: datetime, days_before: int) -> bool:
    day = start.astimezone(UTC) - timedelta(days=days_before)
    return (day.weekday() >= 5) == (start.astimezone(UTC).weekday() >= 5)


def _adjustment(hours_w: Mapping[int, float], days: list[int], until: datetime) -> float:
    """Return the power of the event's day over that of similar days, in the hours before it."""
    last = hour_of(until.timestamp())
    hours = [last - n * _HOUR_S for n in range(_ADJUSTED_TO_H + 1, _ADJUSTED_FROM_H + 1)]
    pairs = [
        (hours_w[hour], fmean(hours_w[hour - day * _DAY_S] for day in days))
        for hour in hours
        if hour in hours_w and all(hour - day * _DAY_S in hours_w for day in days)
    ]
    usual_w = sum(usual for _, usual in pairs)
    if not usual_w:
        return 1.0
    factor = sum(own for own, _ in pairs) / usual_w
    return min(max(factor, 1 - _MAX_ADJUSTMENT), 1 + _MAX_ADJUSTMENT)

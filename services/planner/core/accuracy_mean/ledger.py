"""The grid, the load and the accuracy of the last weeks, by hour of grid time.

It is what the price of accuracy is found from, and how far a period has kept its promised mean.
Under replay an hour of grid time is shorter than a clock's. Hours are numbered from the epoch of
grid time, which is the clock's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from services.kit.grouping import summed
from services.kit.units import S_PER_H

Values = Mapping[str, float]

MEMORY_H: Final = 56 * 24
"""Most hours that a price is found from: more would mix seasons."""


@dataclass(frozen=True, slots=True)
class GridHour:
    """One hour of grid time that is over.

    Attributes:
        number: Hours since the epoch of grid time.
        intensity_gco2e_per_kwh: Mean intensity by zone.
        demand_rps: Mean load that was provided for, by model, req/s.
        answered: Answered requests by model.
        accuracy: Sum of their accuracies relative to the best variant's, by model.
    """

    number: int
    intensity_gco2e_per_kwh: Values
    demand_rps: Values
    answered: Values = field(default_factory=dict)
    accuracy: Values = field(default_factory=dict)


@dataclass(slots=True)
class _OpenHour:
    """The current hour: sums of values times seconds, seconds, and answers."""

    number: int
    sums: dict[tuple[str, str], float] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)

    def hold(self, kind: str, values: Values, length_s: float) -> None:
        for name, value in values.items():
            key = kind, name
            self.sums[key] = self.sums.get(key, 0.0) + value * length_s
            self.seconds[key] = self.seconds.get(key, 0.0) + length_s

    def closed(self) -> GridHour:
        def means(kind: str) -> dict[str, float]:
            return {
                name: self.sums[each, name] / seconds
                for (each, name), seconds in self.seconds.items()
                if each == kind and seconds > 0
            }

        return GridHour(
            self.number, means("grid"), means("load"), dict(self.answered), dict(self.accuracy)
        )


class AccuracyLedger:
    """Hours of grid time, as many as a period or the memory has.

    Args:
        speedup: Grid seconds per second.

    Attributes:
        over_h: Length of a period, h.
        hours: Hours that are over, by number, oldest first.
        written: Number of the last hour that is in the store.
    """

    def __init__(self, over_h: int, speedup: float = 1.0) -> None:
        self.over_h = over_h
        self.hours: dict[int, GridHour] = {}
        self.written = -1
        self._speedup = speedup
        self._open: _OpenHour | None = None
        self._held: tuple[Values, Values] = ({}, {})
        self._accuracy: dict[str, float] = {}
        self._until_s: float | None = None

    @property
    def memory_h(self) -> int:
        """Length of what a price is found from: two periods', at most MEMORY_H."""
        return min(2 * self.over_h, MEMORY_H)

    def hour(self, now_s: float) -> int:
        """Return the number of the hour of grid time; `now_s`: Unix time, s."""
        return math.floor(now_s * self._speedup / S_PER_H)

    def left_h(self, now_s: float) -> float:
        """Return the time until the period ends, h of grid time; above 0."""
        at_h = now_s * self._speedup / S_PER_H
        return self.over_h - at_h % self.over_h

    def hold(
        self, now_s: float, *, intensity: Values | None = None, demand_rps: Values | None = None
    ) -> None:
        """Record that these values hold from now on, and the ones before did until now."""
        self._advance(now_s)
        grid, load = self._held
        self._held = (
            grid if intensity is None else dict(intensity),
            load if demand_rps is None else dict(demand_rps),
        )

    def answer(self, now_s: float, requests: Values, accuracy: Values) -> None:
        """Add requests by model, with the mean accuracy of their answers; missing: as before."""
        self._advance(now_s)
        self._accuracy |= accuracy
        hour = self._current(self.hour(now_s))
        for model, count in requests.items():
            if model in self._accuracy:
                gained = count * self._accuracy[model]
                hour.answered[model] = hour.answered.get(model, 0.0) + count
                hour.accuracy[model] = hour.accuracy.get(model, 0.0) + gained

    def restore(self, hours: Iterable[GridHour], now_s: float) -> None:
        """Take over hours that an earlier process, or another planner, has written."""
        self.hours = {each.number: each for each in sorted(hours, key=lambda each: each.number)}
        self._trim(self.hour(now_s))
        self.written = max(self.hours, default=-1)

    def unwritten(self) -> list[GridHour]:
        """Return all hours to write if one has ended since the last were; empty: none has."""
        return list(self.hours.values()) if max(self.hours, default=-1) > self.written else []

    def lately(self, now_s: float) -> list[GridHour]:
        """Return the last hours, as many as are remembered, with the current one."""
        return self._since(now_s, self.hour(now_s) + 1 - self.memory_h)

    def of_period(self, now_s: float) -> list[GridHour]:
        """Return the hours of the current period so far, with the current one."""
        return self._since(now_s, self.hour(now_s) // self.over_h * self.over_h)

    def _since(self, now_s: float, first: int) -> list[GridHour]:
        self._advance(now_s)
        now = self._current(self.hour(now_s)).closed()
        if not now.intensity_gco2e_per_kwh:  # it has just begun
            now = replace(now, intensity_gco2e_per_kwh=self._held[0], demand_rps=self._held[1])
        known = [*self.hours.values(), *([now] if now.intensity_gco2e_per_kwh else [])]
        return [each for each in known if each.number >= first]

    def _advance(self, now_s: float) -> None:
        """Add what has held since the last call to the hours that it touched."""
        before_s, self._until_s = self._until_s, now_s
        now = self.hour(now_s)
        if before_s is None or now_s <= before_s:
            self._current(now)
            return
        at_s = max(before_s, now_s - MEMORY_H * S_PER_H / self._speedup)
        while at_s < now_s:
            number = self.hour(at_s)
            end_s = min(
                now_s, max((number + 1) * S_PER_H / self._speedup, math.nextafter(at_s, math.inf))
            )
            hour = self._current(number)
            for kind, values in zip(("grid", "load"), self._held, strict=True):
                hour.hold(kind, values, end_s - at_s)
            at_s = end_s
        self._current(now)

    def _current(self, number: int) -> _OpenHour:
        """Return the open hour, after closing one that is over; a clock set back opens none."""
        if self._open is None:
            self._open = _OpenHour(number)
        elif number > self._open.number:
            closed = self._open.closed()
            if closed.intensity_gco2e_per_kwh or closed.answered:
                known = self.hours.get(closed.number)  # of a process that ended within it
                self.hours[closed.number] = closed if known is None else _together(known, closed)
            self._open = _OpenHour(number)
            self._trim(number)
        return self._open

    def _trim(self, now: int) -> None:
        oldest = now - max(self.over_h, MEMORY_H)
        for number in [each for each in self.hours if not oldest <= each <= now]:
            del self.hours[number]


def _together(earlier: GridHour, later: GridHour) -> GridHour:
    """Return two parts of an hour as one; values are those of the later part, if it has them."""
    return GridHour(
        later.number,
        {**earlier.intensity_gco2e_per_kwh, **later.intensity_gco2e_per_kwh},
        {**earlier.demand_rps, **later.demand_rps},
        summed([*earlier.answered.items(), *later.answered.items()]),
        summed([*earlier.accuracy.items(), *later.accuracy.items()]),
    )

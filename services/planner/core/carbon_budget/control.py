"""Keeps carbon budgets with the best accuracy, by a price of accuracy: the mirror of a mean.

    hours seen, frontier -> the highest price with which these would emit no more than wanted
    wanted rate = even rate of the budget - what was spent too much / hours to make up for it

What a period has spent beyond an even rate, or less, is made up for slowly within a tolerance, and
beyond it before the period ends. The price is found from the last weeks: they know the season, and
no forecast is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.kit.config import CarbonBudget
from services.kit.units import S_PER_H
from services.planner.core.accuracy_mean.control import AccuracyControl, grid_ratio
from services.planner.core.accuracy_mean.frontier import CHEAPEST, DEAREST, Floats, Frontier
from services.planner.core.accuracy_mean.ledger import GridHour
from services.planner.core.model import Period

_STEPS: Final = 28
_END: Final = 14
"""Steps of a price in a period; in the last of this many parts they are eight times as short."""

_LEAST_STEP_S: Final = 60.0
_DAY_H: Final = 24

_TOLERANCE: Final = 0.004
"""Share of a budget that may be spent sooner or later than evenly, and is made up for slowly."""

_AIM: Final = 0.997
"""Share of a budget that is aimed at: profiles and meters err."""

_BEYOND: Final = 1.1
"""Factor beyond the prices at which plans change."""

_PRECISION: Final = 1e-3


def bounds(per: str, now: datetime) -> tuple[datetime, datetime]:
    """Return start and end of the calendar's period around a time, UTC.

    Args:
        per: "day", "week" (from Monday), "month" or "year".
        now: The time.
    """
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "day":
        return day, day + timedelta(days=1)
    if per == "week":
        start = day - timedelta(days=day.weekday())
        return start, start + timedelta(days=7)
    if per == "month":
        start = day.replace(day=1)
        return start, (start + timedelta(days=32)).replace(day=1)
    start = day.replace(month=1, day=1)
    return start, start.replace(year=start.year + 1)


@dataclass(frozen=True, slots=True)
class Course:
    """A budget's period so far.

    Attributes:
        budget: The budget.
        start, end: The period, UTC.
        spent_gco2e: Emissions since its start.
    """

    budget: CarbonBudget
    start: datetime
    end: datetime
    spent_gco2e: float

    @property
    def total_gco2e(self) -> float:
        """The budget."""
        return 1e3 * self.budget.kg

    @property
    def used_up(self) -> bool:
        """True where nothing is left."""
        return self.spent_gco2e >= self.total_gco2e

    def gone(self, now: datetime) -> float:
        """Return the share of the period that is over, 0..1."""
        share: float = (now - self.start) / (self.end - self.start)
        return min(max(share, 0.0), 1.0)

    def left_h(self, now: datetime) -> float:
        """Return the time until the period ends, h; above 0."""
        return max((self.end - now).total_seconds(), 1.0) / S_PER_H

    def wanted_gco2e_per_h(self, now: datetime) -> float:
        """Return the mean rate at which the rest of the budget is to be spent."""
        length_h = (self.end - self.start).total_seconds() / S_PER_H
        total = _AIM * self.total_gco2e
        excess = self.spent_gco2e - total * self.gone(now)
        later = min(max(excess, -_TOLERANCE * total), _TOLERANCE * total)
        left_h = self.left_h(now)
        wanted = total / length_h - (excess - later) / left_h - later / length_h
        return max(wanted, 0.0)

    def step(self, now: datetime) -> tuple[datetime, int]:
        """Return the step of the period: the price is found again with each."""
        length_s = (self.end - self.start).total_seconds()
        last = self.left_h(now) * S_PER_H <= length_s / _END
        step_s = length_s / _STEPS
        step_s = max(min(step_s / 8, S_PER_H) if last else step_s, _LEAST_STEP_S)
        return self.start, int((now - self.start).total_seconds() // step_s)


@dataclass(slots=True)
class CarbonBudgetControl:
    """Finds the price of accuracy that keeps all carbon budgets.

    Attributes:
        accuracy: Has the frontier of plans, and the hours seen.
        budgets: The budgets; empty: accuracy has no price from them.
        spent_gco2e: Emissions of the present period, by budget in order.
    """

    accuracy: AccuracyControl
    budgets: tuple[CarbonBudget, ...] = ()
    spent_gco2e: list[float] = field(default_factory=list)
    _error: float = 1.0
    _before: tuple[datetime, float, float] | None = None
    _found: object = None
    _price: float = DEAREST
    _short: frozenset[int] = frozenset()

    def courses(self, now: datetime) -> list[Course]:
        """Return the course of each budget."""
        spent = [*self.spent_gco2e, *[0.0] * len(self.budgets)]
        return [
            Course(each, *bounds(each.per, now), gone)
            for each, gone in zip(self.budgets, spent, strict=False)
        ]

    def step(self, now: datetime) -> object:
        """Return what the present price depends on; another value: it is to be found again."""
        courses = self.courses(now)
        return tuple((each.step(now), each.used_up) for each in courses)

    def holds_waiting(self, now: datetime) -> bool:
        """Return whether waiting work is to pause: a budget is used up that says so."""
        return any(c.used_up and c.budget.at_end == "hold_waiting" for c in self.courses(now))

    def prices(self, now: datetime, forecast: Sequence[Period] = ()) -> Mapping[str, float]:
        """Return the emissions that a point of a request's accuracy is worth, gCO2e by model.

        Empty while no frontier is known, or without budgets.
        """
        known = self.accuracy.frontier
        if not self.budgets or known is None:
            return {}
        key = id(known), self.step(now)
        if key != self._found:
            hours, courses = self.accuracy.hours(now.timestamp(), forecast), self.courses(now)
            self._calibrate(known, hours, now)
            found = [
                SeenHours.of(known, _lately(hours, each.left_h(now))).price(
                    self._wanted(each, now) / self._error
                )
                for each in courses
            ]
            self._price = min(found)
            self._short = frozenset(n for n, each in enumerate(found) if each <= CHEAPEST)
            self._found = key
            if self._before is not None:
                self._before = (*self._before[:2], self._price)
        return {name: self._price * unit for name, unit in known.unit_gco2e.items()}

    def short(self, now: datetime) -> list[Course]:
        """Return the budgets that are used up, or that even the least accurate plans exceed."""
        courses = self.courses(now)
        return [each for n, each in enumerate(courses) if each.used_up or n in self._short]

    def expected_gco2e(self, course: Course, now: datetime) -> float | None:
        """Return the emissions of a whole period at the present price; None: not known."""
        known = self.accuracy.frontier
        hours = self.accuracy.hours(now.timestamp(), ())
        if known is None or not hours:
            return None
        left_h = course.left_h(now)
        rate = SeenHours.of(known, _lately(hours, left_h)).rate_gco2e_per_h(self._price)
        return course.spent_gco2e + left_h * rate * self._error

    def _calibrate(self, known: Frontier, hours: Sequence[GridHour], now: datetime) -> None:
        """Compare what was emitted since the last price with what the frontier expects of it."""
        spent, before = self.spent_gco2e[0] if self.spent_gco2e else 0.0, self._before
        if before is not None and spent > before[1]:
            since, known_gco2e, at_price = before
            length_h = (now - since).total_seconds() / S_PER_H
            first = self.accuracy.ledger.hour(since.timestamp())
            passed = SeenHours.of(known, [each for each in hours if each.number >= first])
            expected = length_h * passed.rate_gco2e_per_h(at_price)
            if expected > 0:
                weight = min(length_h / _DAY_H, 1.0)
                found = min(max((spent - known_gco2e) / expected, 0.5), 2.0)
                self._error += weight * (found - self._error)
        self._before = now, spent, self._price

    def _wanted(self, course: Course, now: datetime) -> float:
        """Return the rate wanted, gCO2e/h; a budget that is used up may let it be the even one."""
        if course.used_up and course.budget.at_end == "exceed":
            return course.total_gco2e / ((course.end - course.start).total_seconds() / S_PER_H)
        return course.wanted_gco2e_per_h(now)


@dataclass(frozen=True, slots=True)
class SeenHours:
    """Hours beside the frontier.

    Attributes:
        known: The frontier.
        ratios: Intensity of each hour relative to the usual one.
        levels: Position of the nearest level of load of each hour.
    """

    known: Frontier
    ratios: Floats
    levels: NDArray[np.int64]

    @classmethod
    def of(cls, known: Frontier, hours: Sequence[GridHour]) -> SeenHours:
        """Place hours beside a frontier."""
        loads = np.log([level.load for level in known.levels])
        return cls(
            known,
            np.array([grid_ratio(known, each) for each in hours]),
            np.array([np.abs(np.log(_load(known, each)) - loads).argmin() for each in hours], int),
        )

    def rate_gco2e_per_h(self, at_price: float) -> float:
        """Return the mean emissions at a price in units."""
        total = 0.0
        for index, level in enumerate(self.known.levels):
            ratios = self.ratios[self.levels == index]
            plans = np.searchsorted(level.prices, at_price / ratios, "right")
            total += float(ratios @ level.emitted_gco2e_per_h[plans])
        return total / max(len(self.ratios), 1)

    def price(self, wanted_gco2e_per_h: float) -> float:
        """Return the highest price, in units, with which they emit no more than wanted.

        CHEAPEST where none does, DEAREST where any does.
        """
        if not len(self.ratios):
            return DEAREST
        turns = np.concatenate([level.prices for level in self.known.levels] + [np.ones(1)])
        low = float(turns.min() * self.ratios.min()) / _BEYOND
        high = float(turns.max() * self.ratios.max()) * _BEYOND
        if self.rate_gco2e_per_h(high) <= wanted_gco2e_per_h:
            return DEAREST
        if self.rate_gco2e_per_h(low) > wanted_gco2e_per_h:
            return CHEAPEST
        while high > low * (1 + _PRECISION):
            middle = math.sqrt(low * high)
            fits = self.rate_gco2e_per_h(middle) <= wanted_gco2e_per_h
            low, high = (middle, high) if fits else (low, middle)
        return low


def _lately(hours: Sequence[GridHour], left_h: float) -> Sequence[GridHour]:
    """Return the hours that the rest of a period resembles: the nearer its end, the later ones."""
    return hours[-max(math.ceil(2 * left_h), _DAY_H) :]


def _load(known: Frontier, hour: GridHour) -> float:
    """Return an hour's load relative to the usual one, over all models."""
    pairs = [
        (hour.demand_rps.get(name, rps), rps) for name, rps in known.demand_rps.items() if rps > 0
    ]
    if not pairs:
        return 1.0
    return max(sum(now / usual for now, usual in pairs) / len(pairs), 1e-6)

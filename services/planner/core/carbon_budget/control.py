"""Keeps carbon budgets with the best accuracy, by a price of accuracy: the mirror of a mean.

    hours seen, frontier -> the highest price with which these would emit no more than wanted
    wanted rate = even rate of the budget - what was spent too much / hours to make up for it

What a period has spent beyond an even rate, or less, is made up for slowly within a tolerance, and
beyond it before the period ends. The price is found from the last weeks: they know the season, and
no forecast is needed. A reserve stays for the least accurate plans in the dirtiest hours of these
weeks, so that a few such days at the end of a period cannot exceed its budget.

A budget of some models is kept by their price alone, one of a site by that of all models, which may
be served there. Where several budgets concern a model, the lowest price counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from services.kit.config import CarbonBudget
from services.kit.units import S_PER_H
from services.planner.core.accuracy_mean.control import AccuracyControl
from services.planner.core.accuracy_mean.frontier import CHEAPEST, DEAREST, Frontier
from services.planner.core.accuracy_mean.ledger import GridHour
from services.planner.core.carbon_budget.seen_hours import Placed, SeenHours, lately
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

_LEAST_ERROR: Final = 0.5
_MOST_ERROR: Final = 2.0
"""Least and most emissions over those that profiles expect: beyond it something else is wrong."""

_LEAST_PART: Final = 1e-6

_Calibrated = tuple[datetime, tuple[float, ...], Mapping[str, float]]
"""When prices were found, what each budget had spent, and the prices in units."""


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
        if self.left_h(now) * S_PER_H <= length_s / _END:
            return self.start, self.short_step(now)
        return self.start, int((now - self.start).total_seconds() // (length_s / _STEPS))

    def short_step(self, now: datetime) -> int:
        """Return the number of the steps that its end has, of this length since its start."""
        length_s = (self.end - self.start).total_seconds()
        step_s = max(min(length_s / _STEPS / 8, S_PER_H), _LEAST_STEP_S)
        return int((now - self.start).total_seconds() // step_s)


@dataclass(slots=True)
class CarbonBudgetControl:
    """Finds the prices of accuracy that keep all carbon budgets.

    Attributes:
        accuracy: Has the frontier of plans, and the hours seen.
        budgets: The budgets; empty: accuracy has no price from them.
        spent_gco2e: Emissions of the present period, by budget in order.
        part: Returns the part of the fleet's emissions that a budget's sites are expected to have.
    """

    accuracy: AccuracyControl
    budgets: tuple[CarbonBudget, ...] = ()
    spent_gco2e: list[float] = field(default_factory=list)
    part: Callable[[CarbonBudget], float] = lambda _: 1.0
    _errors: dict[int, float] = field(default_factory=dict)
    _before: _Calibrated | None = None
    _found: object = None
    _prices: dict[str, float] = field(default_factory=dict)
    _short: frozenset[int] = frozenset()
    _placed: tuple[Frontier | None, Placed] = (None, {})
    _spared: dict[int, tuple[object, bool]] = field(default_factory=dict)

    def courses(self, now: datetime) -> list[Course]:
        """Return the course of each budget."""
        spent = [*self.spent_gco2e, *[0.0] * len(self.budgets)]
        return [
            Course(each, *bounds(each.per, now), gone)
            for each, gone in zip(self.budgets, spent, strict=False)
        ]

    def step(self, now: datetime) -> object:
        """Return what the present prices depend on; another value: they are to be found again."""
        return tuple(
            (each.step(now), each.used_up, self._spares(n, each, now))
            for n, each in enumerate(self.courses(now))
        )

    # ---- the end of a budget -------------------------------------------------------------------

    def holds_waiting(self, now: datetime) -> bool:
        """Return whether all waiting work is to pause: a budget is used up that says so."""
        return any(not each.models for each in self._holding(now))

    def held_models(self, now: datetime) -> frozenset[str]:
        """Return the models whose waiting work is to pause, where not all is."""
        return frozenset(name for each in self._holding(now) for name in each.models)

    def short(self, now: datetime) -> list[Course]:
        """Return the budgets that are used up, or that even the least accurate plans exceed."""
        courses = self.courses(now)
        return [each for n, each in enumerate(courses) if each.used_up or n in self._short]

    def _holding(self, now: datetime) -> list[CarbonBudget]:
        used_up = [each.budget for each in self.courses(now) if each.used_up]
        return [each for each in used_up if each.at_end == "hold_waiting"]

    # ---- prices --------------------------------------------------------------------------------

    def prices(self, now: datetime, forecast: Sequence[Period] = ()) -> Mapping[str, float]:
        """Return the emissions that a point of a request's accuracy is worth, gCO2e by model.

        Empty while no frontier is known, or without budgets; a model that no budget concerns has
        none.
        """
        known = self.accuracy.frontier
        if not self.budgets or known is None:
            return {}
        key = id(known), self.step(now)
        if key != self._found:
            hours = self.accuracy.hours(now.timestamp(), forecast)
            self._calibrate(known, hours, now)
            self._find(known, hours, now)
            self._found = key
            self._before = now, tuple(self.spent_gco2e), self._prices
        return {name: price * known.unit_gco2e[name] for name, price in self._prices.items()}

    def prices_for(self, budgets: Sequence[CarbonBudget], now: datetime) -> Mapping[str, float]:
        """Return the prices that other budgets would have.

        One that resembles a present budget in all but its size has spent as much; another has
        spent evenly so far.
        """
        other = CarbonBudgetControl(self.accuracy, tuple(budgets), part=self.part)
        present = {_scope(course.budget): n for n, course in enumerate(self.courses(now))}
        for n, course in enumerate(other.courses(now)):
            like = present.get(_scope(course.budget))
            if like is None:
                other.spent_gco2e.append(course.gone(now) * course.total_gco2e)
            else:
                other.spent_gco2e.append(self.courses(now)[like].spent_gco2e)
                other._errors[n] = self._errors.get(like, 1.0)
        return other.prices(now)

    def expected_gco2e(self, n: int, now: datetime) -> float | None:
        """Return a budget's emissions of its whole period at the present prices; None: not known.

        Args:
            n: Position of the budget.
            now: Time, UTC.
        """
        known, course = self.accuracy.frontier, self.courses(now)[n]
        hours = self.accuracy.hours(now.timestamp(), ())
        if known is None or not hours:
            return None
        left_h = course.left_h(now)
        seen = SeenHours.of(known, lately(hours, left_h))
        rate = _rate(seen, course.budget, self._prices)
        return course.spent_gco2e + left_h * rate * self._factor(n)

    def _find(self, known: Frontier, hours: Sequence[GridHour], now: datetime) -> None:
        """Find the price of each model; budgets of some models first: the others build on these."""
        prices, short = dict[str, float](), set[int]()
        courses = sorted(enumerate(self.courses(now)), key=lambda pair: not pair[1].budget.models)
        for n, each in courses:
            seen = SeenHours.of(known, lately(hours, each.left_h(now)))
            wanted = self._wanted(each, now) / self._factor(n)
            found = seen.price(wanted, each.budget.models, prices)
            if found <= CHEAPEST:
                short.add(n)
            if self._spares(n, each, now):
                found = CHEAPEST
            for name in each.budget.models or known.unit_gco2e:
                prices[name] = min(found, prices.get(name, DEAREST))
        self._prices = {name: each for name, each in prices.items() if name in known.unit_gco2e}
        self._short = frozenset(short)

    def _factor(self, n: int) -> float:
        """Return the emissions of a budget over those that the frontier expects of its models."""
        return max(self.part(self.budgets[n]) * self._errors.get(n, 1.0), _LEAST_PART)

    def _spares(self, n: int, course: Course, now: datetime) -> bool:
        """Return whether the least accurate plans need all that is left, if the grid is at worst.

        It is looked at as often as prices may be found: it would come and go.
        """
        known, at = self.accuracy.frontier, (course.start, course.short_step(now))
        if known is None or course.used_up:
            return False
        if n not in self._spared or self._spared[n][0] != at:
            seen = self._seen(known, self.accuracy.hours(now.timestamp(), ()))
            least = seen.least_gco2e(course.left_h(now), course.budget.models) * self._factor(n)
            spares = course.spent_gco2e + least >= _AIM * course.total_gco2e
            self._spared[n] = at, spares
        return self._spared[n][1]

    def _seen(self, known: Frontier, hours: Sequence[GridHour]) -> SeenHours:
        """Place hours of the ledger beside the frontier; those that are over were placed before."""
        if self._placed[0] is not known:
            self._placed = known, {}
        placed = self._placed[1]
        for number in [each for each in placed if hours and each < hours[0].number]:
            del placed[number]
        return SeenHours.of(known, hours, placed)

    def _calibrate(self, known: Frontier, hours: Sequence[GridHour], now: datetime) -> None:
        """Compare what was emitted since the last prices with what the frontier expects of it."""
        if self._before is None:
            return
        since, known_gco2e, at_prices = self._before
        length_h = (now - since).total_seconds() / S_PER_H
        first, last = (self.accuracy.ledger.hour(at.timestamp()) for at in (since, now))
        last = max(last, first + 1)  # without the hour that has just begun
        passed = SeenHours.of(known, [each for each in hours if first <= each.number < last])
        for n, budget in enumerate(self.budgets):
            gone = self.spent_gco2e[n] - known_gco2e[n] if n < len(known_gco2e) else 0.0
            if gone <= 0:  # another period
                continue
            rate = _rate(passed, budget, at_prices)
            expected = length_h * rate * self.part(budget)
            if expected > 0:
                weight = min(length_h / _DAY_H, 1.0)
                found = min(max(gone / expected, _LEAST_ERROR), _MOST_ERROR)
                error = self._errors.get(n, 1.0)
                self._errors[n] = error + weight * (found - error)

    def _wanted(self, course: Course, now: datetime) -> float:
        """Return the rate wanted, gCO2e/h; a budget that is used up may let it be the even one."""
        if course.used_up and course.budget.at_end == "exceed":
            return course.total_gco2e / ((course.end - course.start).total_seconds() / S_PER_H)
        return course.wanted_gco2e_per_h(now)


def _rate(seen: SeenHours, budget: CarbonBudget, prices: Mapping[str, float]) -> float:
    """Return the mean emissions of a budget's models at these prices, gCO2e/h."""
    highest = max(prices.values(), default=DEAREST)
    return seen.rate_gco2e_per_h(highest, budget.models, prices)


def _scope(budget: CarbonBudget) -> object:
    """Return what a budget is of, all but its size."""
    return budget.per, frozenset(budget.models), frozenset(budget.sites)

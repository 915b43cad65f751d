"""Electricity prices over time, by zone.

Where a price is missing, that of the same hour of an earlier day stands for it, up to a week back:
markets publish a day ahead, and their prices repeat themselves by day.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from services.kit.config.prices import LEAST_EUR_PER_KWH, MOST_EUR_PER_KWH

MOST_STEPS: Final = 4096
"""Most prices of a zone that are kept: six weeks of quarter hours."""

_DAY_S: Final = 86_400.0
_DAYS_BACK: Final = 7


@dataclass(frozen=True, slots=True)
class PriceStep:
    """A price in a stretch of time.

    Attributes:
        start_s, end_s: Unix times, s; the end may be infinite.
        eur_per_kwh: The price, EUR/kWh.
    """

    start_s: float
    end_s: float
    eur_per_kwh: float


@dataclass(frozen=True, slots=True)
class Price:
    """A price, and the age of what it is from.

    Attributes:
        eur_per_kwh: The price, EUR/kWh.
        days_old: Days since the hour that stands for it; 0: it is of its own time.
    """

    eur_per_kwh: float
    days_old: int = 0


def wrong_price(eur_per_kwh: float) -> str:
    """Return why a figure is no price; "": it is one."""
    if LEAST_EUR_PER_KWH <= eur_per_kwh <= MOST_EUR_PER_KWH:
        return ""  # else, or not a number
    return (
        f"must be {LEAST_EUR_PER_KWH:g}..{MOST_EUR_PER_KWH:g} EUR/kWh, got "
        f"{eur_per_kwh:g}: is it of another unit?"
    )


@dataclass(slots=True)
class EnergyPrices:
    """Prices of zones in time.

    Attributes:
        courses: Prices by zone, in order of time.
    """

    courses: dict[str, tuple[PriceStep, ...]] = field(default_factory=dict)

    def put(self, zone: str, steps: Iterable[PriceStep], now_s: float) -> bool:
        """Add a zone's prices, in the place of those of the same time; return whether any changed.

        Args:
            zone: The zone.
            steps: Valid prices, in any order.
            now_s: Unix time, s: prices more than a week before it are dropped.
        """
        known = {each.start_s: each for each in self.courses.get(zone, ())}
        known |= {each.start_s: each for each in steps}
        oldest_s = now_s - (_DAYS_BACK + 1) * _DAY_S
        found = sorted(
            (each for each in known.values() if each.end_s > oldest_s),
            key=lambda each: each.start_s,
        )
        # Of too many, those that are nearest count.
        first = bisect_right(found, oldest_s, key=lambda each: each.end_s)
        course = tuple(found[first : first + MOST_STEPS])
        changed = course != self.courses.get(zone, ())
        self.courses[zone] = course
        return changed

    def replace(self, zone: str, steps: Iterable[PriceStep], now_s: float) -> bool:
        """Take a zone's prices from now on; those of the past stay. Return whether any changed."""
        past = tuple(each for each in self.courses.get(zone, ()) if each.end_s <= now_s)
        before, self.courses[zone] = self.courses.get(zone, ()), past
        self.put(zone, steps, now_s)
        return before != self.courses[zone]

    def keep(self, zones: Iterable[str]) -> None:
        """Drop the prices of all other zones."""
        wanted = set(zones)
        self.courses = {zone: each for zone, each in self.courses.items() if zone in wanted}

    def at(self, zone: str, at_s: float) -> Price | None:
        """Return the price at a time; None: none is known, nor of the week before."""
        course = self.courses.get(zone, ())
        for days in range(_DAYS_BACK + 1):
            found = _at(course, at_s - days * _DAY_S)
            if found is not None:
                return Price(found, days)
        return None

    def now(self, at_s: float) -> dict[str, float]:
        """Return the price of each zone that has one, EUR/kWh."""
        found = {zone: self.at(zone, at_s) for zone in self.courses}
        return {zone: each.eur_per_kwh for zone, each in found.items() if each is not None}

    def mean(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return the mean price of each zone in a stretch of time, by quarter hours, EUR/kWh."""
        count = min(max(math.ceil((end_s - start_s) / 900.0), 1), 96)
        step_s = (end_s - start_s) / count
        parts = [self.now(start_s + (number + 0.5) * step_s) for number in range(count)]
        return {
            zone: sum(part[zone] for part in parts) / count
            for zone in self.courses
            if all(zone in part for part in parts)
        }

    def changes_s(self, now_s: float) -> float:
        """Return the time until a price changes, s; infinite: none is known to."""
        times = (
            each.end_s - now_s
            for course in self.courses.values()
            for each in course
            if each.start_s <= now_s < each.end_s
        )
        return min(times, default=math.inf)


def _at(course: tuple[PriceStep, ...], at_s: float) -> float | None:
    index = bisect_right(course, at_s, key=lambda each: each.start_s) - 1
    if index < 0 or at_s >= course[index].end_s:
        return None
    return course[index].eur_per_kwh


def counted_eur_per_kwh(
    price_eur_per_kwh: float, intensity_gco2e_per_kwh: float, carbon_price_eur_per_t: float
) -> float:
    """Return what an objective counts for a kWh, EUR: its price, and that of its carbon.

    Never below 0: no plan draws power because it is paid for.
    """
    return max(0.0, price_eur_per_kwh + 1e-6 * carbon_price_eur_per_t * intensity_gco2e_per_kwh)


def by_zone(
    prices: Mapping[str, float], intensity: Mapping[str, float], carbon_price_eur_per_t: float
) -> dict[str, float]:
    """Return `counted_eur_per_kwh` of each zone; one without a price counts its carbon alone."""
    return {
        zone: counted_eur_per_kwh(prices.get(zone, 0.0), value, carbon_price_eur_per_t)
        for zone, value in intensity.items()
    }

"""Hours of the grid and the load beside the frontier of plans: emissions at each price."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.planner.core.accuracy_mean.control import grid_ratios
from services.planner.core.accuracy_mean.frontier import CHEAPEST, DEAREST, Floats, Frontier
from services.planner.core.accuracy_mean.ledger import GridHour

Caps = Mapping[str, float]
"""Highest price by model, in units."""

Placed = dict[int, tuple[float, int]]
"""Ratio of the intensity, and position of the level of load, by number of an hour."""

NO_CAPS: Final[Caps] = MappingProxyType({})

_DAY_H: Final = 24

_BEYOND: Final = 1.1
"""Factor beyond the prices at which plans change."""

_PRECISION: Final = 1e-3


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
    def of(
        cls, known: Frontier, hours: Sequence[GridHour], placed: Placed | None = None
    ) -> SeenHours:
        """Place hours beside a frontier.

        Args:
            known: The frontier.
            hours: The hours.
            placed: Places of hours that are over beside this frontier, by number; new ones are
                added.
        """
        loads = np.log([level.load for level in known.levels])
        placed = {} if placed is None else placed
        found = [placed.get(each.number) or _place(known, each, loads) for each in hours]
        for each, place in zip(hours[:-1], found, strict=False):
            placed[each.number] = place
        return cls(
            known, np.array([ratio for ratio, _ in found]), np.array([n for _, n in found], int)
        )

    def rate_gco2e_per_h(
        self, at_price: float, models: Collection[str] = (), caps: Caps = NO_CAPS
    ) -> float:
        """Return the mean emissions at a price in units.

        Args:
            at_price: The price.
            models: Models whose requests' emissions count; none: all of the fleet's.
            caps: Highest price by model, as other budgets have it.
        """
        if models:
            return sum(self._mean(min(at_price, caps.get(m, at_price)), m) for m in models)
        less = sum(
            self._mean(at_price, name) - self._mean(cap, name)
            for name, cap in caps.items()
            if cap < at_price
        )
        return self._mean(at_price) - less

    def _mean(self, at_price: float, model: str = "") -> float:
        """Return the mean emissions of a model, or of all, at a price, gCO2e/h."""
        total = 0.0
        for index, level in enumerate(self.known.levels):
            ratios = self.ratios[self.levels == index]
            plans = np.searchsorted(level.prices, at_price / ratios, "right")
            total += float(ratios @ level.emitted(model)[plans])
        return total / max(len(self.ratios), 1)

    def least_gco2e(self, length_h: float, models: Collection[str] = ()) -> float:
        """Return what the least accurate plans emit in the dirtiest stretch of that length.

        One longer than the hours seen goes on at their mean.
        """
        if not len(self.ratios):
            return 0.0
        each = np.zeros(len(self.ratios))
        for index, level in enumerate(self.known.levels):
            at = self.levels == index
            plans = np.searchsorted(level.prices, CHEAPEST / self.ratios[at], "right")
            for name in models or ("",):
                each[at] += self.ratios[at] * level.emitted(name)[plans]
        number = min(max(round(length_h), 1), len(each))
        sums = np.concatenate([[0.0], np.cumsum(each)])
        return float((sums[number:] - sums[:-number]).max()) * length_h / number

    def price(
        self, wanted_gco2e_per_h: float, models: Collection[str] = (), caps: Caps = NO_CAPS
    ) -> float:
        """Return the highest price, in units, with which they emit no more than wanted.

        CHEAPEST where none does, DEAREST where any does; arguments as for `rate_gco2e_per_h`.
        """
        if not len(self.ratios):
            return DEAREST

        def rate(at_price: float) -> float:
            return self.rate_gco2e_per_h(at_price, models, caps)

        turns = np.concatenate([level.prices for level in self.known.levels] + [np.ones(1)])
        low = float(turns.min() * self.ratios.min()) / _BEYOND
        high = float(turns.max() * self.ratios.max()) * _BEYOND
        if rate(high) <= wanted_gco2e_per_h:
            return DEAREST
        if rate(low) > wanted_gco2e_per_h:
            return CHEAPEST
        while high > low * (1 + _PRECISION):
            middle = math.sqrt(low * high)
            fits = rate(middle) <= wanted_gco2e_per_h
            low, high = (middle, high) if fits else (low, middle)
        return low


def _place(known: Frontier, hour: GridHour, loads: Floats) -> tuple[float, int]:
    """Return the ratio of an hour's intensity, and the position of its level of load."""
    level = np.abs(np.log(_load(known, hour)) - loads).argmin()
    return float(grid_ratios(known, [hour])[0]), int(level)


def lately(hours: Sequence[GridHour], left_h: float) -> Sequence[GridHour]:
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

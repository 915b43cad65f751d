"""Keeps a mean accuracy over a period with the least carbon, by a price of accuracy.

    hours seen, frontier -> the price with which the hours seen would have had the wanted mean
    wanted mean = promised mean + lack or surplus beyond the tolerance / answers still to come

At a given price each moment is decided by its own intensity: no forecast is needed. The price is
the geometric mean of those of several windows: short ones follow the weather, which keeps the mean
with few corrections; long ones do not, which saves most while it holds by itself.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.kit.config import AccuracyMean
from services.kit.grouping import summed
from services.kit.units import S_PER_H
from services.planner.core.accuracy_mean.frontier import (
    DEAREST,
    Floats,
    Frontier,
    Level,
)
from services.planner.core.accuracy_mean.ledger import AccuracyLedger, GridHour, Values
from services.planner.core.model import Period

_STEPS: Final = 112
"""Prices per period."""

_END: Final = 7
"""In the last of this many parts of a period, prices are found six times as often."""

_FEW: Final = 28
"""Part of a period up to which the hours seen are few."""

_WINDOWS: Final = (28, 8, 2, 1)
"""Parts of the hours remembered that prices are found from: 2, 7, 28 and 56 days of 56."""

_DAY_H: Final = 24
"""Last hours that say which load the rest of a period has at least; half of the least window."""

_TOLERANCE: Final = 8.5e-4
"""Lack or surplus of a period's mean that may be left at its end."""

_SAME_LOAD: Final = 1.25
"""Ratio of loads up to which one frontier stands for both."""

_SAME_GRID: Final = 0.1
"""Relative change of the ratio of two zones' intensities that leaves the frontier as it is."""

_BEYOND: Final = 1.1
"""Factor beyond the prices at which plans change: a price further out says no more."""

_PRECISION: Final = 1e-3
"""Relative precision of a price."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual circumstances, for which a frontier is to be found.

    Attributes:
        circumstances: What it depends on besides: fleet, models, settings.
        intensity_gco2e_per_kwh: Mean intensity by zone.
        demand_rps: Mean load by model, req/s.
        loads: Loads relative to it, ascending.
    """

    circumstances: Hashable
    intensity_gco2e_per_kwh: Values
    demand_rps: Values
    loads: tuple[float, ...]


@dataclass(slots=True)
class AccuracyControl:
    """Finds the price of each model's accuracy.

    Attributes:
        ledger: The hours seen, with their answers.
        promise: The mean to keep; None: none, and accuracy has no price.
        frontier: Plans to choose from; None: not known yet.
        budgeted: Whether carbon budgets need the frontier.
    """

    ledger: AccuracyLedger
    promise: AccuracyMean | None = None
    frontier: Frontier | None = None
    budgeted: bool = False
    _usual: Usual | None = None
    _due: Usual | None = None
    _prices: dict[str, float] = field(default_factory=dict)
    _found: tuple[int, int] | None = None
    _considered: Hashable = None
    _so_far: tuple[int, dict[str, float]] = (-1, {})

    def configure(self, promise: AccuracyMean | None) -> None:
        """Keep another mean from now on, or none."""
        if promise != self.promise:
            self.promise, self._found = promise, None
            self.ledger.over_h = period_h(promise)

    # ---- the frontier --------------------------------------------------------------------------

    def usual(
        self, circumstances: Hashable, now_s: float, forecast: Sequence[Period] = ()
    ) -> Usual | None:
        """Return the circumstances to find a frontier for; None: the known one is good enough.

        They are considered once an hour of grid time, or when `circumstances` change, and are the
        same until a frontier for them is learned.
        """
        considered = circumstances, self.ledger.hour(now_s), self.promise
        if not (self.promise or self.budgeted):
            return None
        if considered != self._considered:
            hours = self.hours(now_s, forecast)
            if not hours:
                return None
            now = _usual(circumstances, hours)
            known = self._usual is not None and _alike(self._usual, now)
            self._considered, self._due = considered, None if known else now
        return self._due

    def learn(self, usual: Usual, found: Frontier | None) -> None:
        """Use a frontier from now on; None: there is none, until the circumstances change."""
        self._usual, self.frontier, self._found, self._due = usual, found, None, None

    # ---- prices --------------------------------------------------------------------------------

    def prices(self, now_s: float, forecast: Sequence[Period] = ()) -> Mapping[str, float]:
        """Return the emissions that a point of a request's accuracy is worth, gCO2e by model.

        Empty while no frontier is known. They change from step to step of the period only.
        """
        if self.promise is None or self.frontier is None:
            return {}
        hour, left_h = self.ledger.hour(now_s), self.ledger.left_h(now_s)
        steps = _STEPS if left_h > self.ledger.over_h / _END else 6 * _STEPS
        step = hour // max(self.ledger.over_h // steps, 1)
        if self._found != (steps, step):
            self._found = steps, step
            self._prices = self.prices_for(self.promise.at_least, now_s, forecast)
        return self._prices

    def prices_for(
        self, at_least: float, now_s: float, forecast: Sequence[Period] = ()
    ) -> dict[str, float]:
        """Return the prices with which another mean would be kept; arguments as for `prices`."""
        if self.frontier is None:
            return {}
        hours = self.hours(now_s, forecast)
        memory_h = self.ledger.memory_h
        windows_h = {max(memory_h // part, 2 * _DAY_H) for part in _WINDOWS}
        windows = [hours[-length_h:] for length_h in sorted(windows_h)]
        return {
            name: _price_gco2e(self.frontier, name, self.wanted(name, at_least, now_s), windows)
            for name in self.frontier.unit_gco2e
        }

    def wanted(self, model: str, at_least: float, now_s: float) -> float:
        """Return the mean accuracy that a model's next answers must have for the period's."""
        hours = self.ledger.lately(now_s)
        answered, accuracy = _sums(model, self.ledger.of_period(now_s))
        rates = [_sums(model, part)[0] / len(part) for part in (hours, hours[-_DAY_H:]) if part]
        per_hour = min(filter(None, rates), default=0.0)  # the load may have fallen since
        if not per_hour:
            return at_least
        coming = per_hour * self.ledger.left_h(now_s)
        lacking = at_least * answered - accuracy
        bearable = _TOLERANCE * (answered + coming)
        return at_least + (lacking - min(max(lacking, -bearable), bearable)) / coming

    def so_far(self, now_s: float) -> dict[str, float]:
        """Return the mean accuracy of the period's answers so far, by model; hourly."""
        hour = self.ledger.hour(now_s)
        if self._so_far[0] != hour:
            self._so_far = hour, self._means(now_s)
        return self._so_far[1]

    def _means(self, now_s: float) -> dict[str, float]:
        hours = self.ledger.of_period(now_s)
        sums = {
            name: _sums(name, hours)
            for name in sorted({n for each in hours for n in each.answered})
        }
        return {name: accuracy / count for name, (count, accuracy) in sums.items() if count}

    def hours(self, now_s: float, forecast: Sequence[Period]) -> list[GridHour]:
        """Return the hours seen; in the first day those of the forecast as well."""
        hours = self.ledger.lately(now_s)
        if len(hours) >= self.ledger.over_h / _FEW or not hours:
            return hours
        last = hours[-1]
        coming = (
            GridHour(last.number + 1 + index, period.intensity_gco2e_per_kwh, last.demand_rps)
            for index, period in enumerate(forecast)
        )
        return [*hours, *coming]


def _sums(model: str, hours: Iterable[GridHour]) -> tuple[float, float]:
    """Return a model's answers in some hours, and the sum of their accuracies."""
    found = [(e.answered.get(model, 0.0), e.accuracy.get(model, 0.0)) for e in hours]
    return sum(count for count, _ in found), sum(accuracy for _, accuracy in found)


def period_h(promise: AccuracyMean | None) -> int:
    """Return the length of a promise's period, h; that of the default where there is none."""
    over_s = (promise or AccuracyMean(at_least=1.0)).over_s
    return round(over_s / S_PER_H)


def _price_gco2e(
    found: Frontier, model: str, wanted: float, windows: Sequence[Sequence[GridHour]]
) -> float:
    """Return the mean of the least prices with which a model has a mean accuracy over windows.

    Where no price on the frontier reaches it, DEAREST.

    Args:
        found: The plans to choose from.
        model: Name of the model.
        wanted: Mean accuracy over its answers, relative to the best variant's.
        windows: Hours seen, at least one each; the longest, which has the others, last.
    """
    hours = windows[-1]
    grid, at = grid_ratios(found, hours), _nearest(found, model, hours)
    weights = np.array([each.answered.get(model, 0.0) for each in hours])
    if not weights.any():
        weights = np.array([each.demand_rps.get(model, 0.0) for each in hours])
    if not weights.any():
        weights = np.ones(len(hours))
    logarithms = []
    for n in map(len, windows):
        total, last = weights[-n:].sum(), at[-n:]
        groups = [
            (level, grid[-n:][last == index], weights[-n:][last == index] / total)
            for index, level in enumerate(found.levels)
            if total > 0 and (last == index).any()
        ]
        if groups:
            logarithms.append(math.log(_price(groups, model, wanted)))
    return math.exp(sum(logarithms) / len(logarithms)) * found.unit_gco2e[model]


def _price(groups: Sequence[tuple[Level, Floats, Floats]], model: str, wanted: float) -> float:
    """Return the least price with which a model has a mean accuracy over one window, in units.

    Args:
        groups: Frontier, intensities relative to the usual one, and shares of the answers, of the
            hours that are alike in load.
        model: Name of the model.
        wanted: The mean.
    """

    def mean(price: float) -> float:
        return sum(
            float(share @ _accuracy(level, model, price / ratio)) for level, ratio, share in groups
        )

    turns = np.concatenate([level.prices for level, *_ in groups] + [np.ones(1)])
    ratios = np.concatenate([each for _, each, _ in groups])
    low = float(turns.min() * ratios.min()) / _BEYOND
    high = float(turns.max() * ratios.max()) * _BEYOND
    if mean(low) >= wanted:
        return low
    if mean(high) < wanted:  # models share GPUs: it may still be had before theirs
        return DEAREST
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if mean(middle) >= wanted else (middle, high)
    return high


def _accuracy(level: Level, model: str, prices: Floats) -> Floats:
    return level.accuracy[model][np.searchsorted(level.prices, prices, "right")]


def grid_ratios(found: Frontier, hours: Sequence[GridHour]) -> Floats:
    """Return intensities relative to the usual one, by hour; zones weigh by their power."""
    usual, weights = found.intensity_gco2e_per_kwh, found.power_w
    total = sum(weights[zone] * usual[zone] for zone in usual)
    if total <= 0:
        return np.ones(len(hours))
    seen = np.zeros(len(hours))
    for zone, value in usual.items():
        known = [each.intensity_gco2e_per_kwh.get(zone, value) for each in hours]
        seen += weights[zone] * np.array(known)
    return np.maximum(seen / total, 1e-6)


def _nearest(found: Frontier, model: str, hours: Sequence[GridHour]) -> NDArray[np.int64]:
    """Return the numbers of the frontier's levels whose load is nearest, by hour."""
    usual_rps = found.demand_rps.get(model, 0.0)
    loads = np.ones(len(hours))
    if usual_rps > 0:
        loads = np.array([each.demand_rps.get(model, usual_rps) for each in hours]) / usual_rps
    levels = np.log([level.load for level in found.levels])
    away = np.abs(np.log(np.maximum(loads, 1e-6))[:, None] - levels)
    return np.asarray(away.argmin(axis=1))


def _usual(circumstances: Hashable, hours: Sequence[GridHour]) -> Usual:
    """Return the means of some hours, with loads from the least to the largest."""
    grid = _means(each.intensity_gco2e_per_kwh for each in hours)
    demand_rps = _means(each.demand_rps for each in hours)
    demand_rps = {name: rps for name, rps in demand_rps.items() if rps > 0}
    relative = sorted(filter(None, (_load(each, demand_rps) for each in hours))) or [1.0]
    least, most = relative[0], relative[-1]
    middle = math.sqrt(least * most)
    loads = (middle,) if most < _SAME_LOAD * least else (least, middle, most)
    return Usual(circumstances, grid, demand_rps, loads)


def _means(values: Iterable[Values]) -> dict[str, float]:
    pairs = [pair for each in values for pair in each.items()]
    counts = summed((name, 1.0) for name, _ in pairs)
    return {name: total / counts[name] for name, total in summed(pairs).items()}


def _load(hour: GridHour, usual_rps: Values) -> float:
    """Return an hour's load relative to the usual one, over all models."""
    shares = [hour.demand_rps.get(name, rps) / rps for name, rps in usual_rps.items()]
    return sum(shares) / len(shares) if shares else 0.0


def _alike(known: Usual, now: Usual) -> bool:
    """Return whether the frontier for `known` is good enough for `now`."""
    if known.circumstances != now.circumstances or known.demand_rps.keys() != now.demand_rps.keys():
        return False
    # Loads are relative to each one's own mean.
    moved = [now.demand_rps[name] / rps for name, rps in known.demand_rps.items()] or [1.0]
    least, most = now.loads[0] * min(moved), now.loads[-1] * max(moved)
    if not known.loads[0] / _SAME_LOAD <= least <= most <= known.loads[-1] * _SAME_LOAD:
        return False
    ratios = [
        now.intensity_gco2e_per_kwh.get(zone, 0.0) / value
        for zone, value in known.intensity_gco2e_per_kwh.items()
        if value > 0
    ]
    return not ratios or max(ratios) <= min(ratios) * (1 + _SAME_GRID)

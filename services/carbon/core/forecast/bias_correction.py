"""How far off a provider's forecasts were, and what that says about the one it has just made.

Once an hour what is foretold is kept, for MEMORY. Held against what came, each hour ahead has its
own errors, and one small ridge regression of them on what was known of the provider's error when
it spoke: of the last hour, of the last day, at that time of day. A provider that has been too low
all day is corrected upwards, and its bounds are quantiles of the errors that are left.

Source: the residual correction of model output statistics (Glahn and Lowry, 1972), made adaptive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from services.carbon.core.forecast.regression import COVERAGE, Array, quantiles, ridge
from services.carbon.core.model import Sample
from services.carbon.core.sources.provider import Outlook

MEMORY = timedelta(days=28)
LEAST = timedelta(days=3)
"""What was foretold over less says nothing yet."""

HOURS = 48

_HOUR = timedelta(hours=1)
_DAY_H = 24
_PENALTY_DAYS = 5.0
_LEAST_ERRORS = 24
_KNOTS = (*range(1, 7), *range(9, HOURS + 1, 3))
"""Hours ahead that are learnt; between them, corrections are interpolated."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Foretold:
    """A provider's forecast, and how good its others were.

    Attributes:
        name: The provider.
        outlook: What it foretells.
        record: What it foretold before.
    """

    name: str
    outlook: Outlook
    record: TrackRecord

    def correction(self, observed: Sequence[Sample], now: datetime) -> Correction | None:
        """Return how to correct it; None: too little is known.

        Args:
            observed: What came, oldest first.
            now: Grid time.
        """
        self.record.note(self.outlook, now)  # it may be of an hour ago, and is all there is
        return self.record.correction(observed, now)


@dataclass(frozen=True, slots=True)
class Correction:
    """What to add to a provider's forecast, by hours ahead: shape (HOURS + 1,), gCO2e/kWh.

    Where too little is known they are NaN.

    Attributes:
        shift: Expected error.
        low, high: An outcome lies between forecast + low and forecast + high with a probability of
            COVERAGE.
    """

    shift: Array
    low: Array
    high: Array


class TrackRecord:
    """What one provider foretold, hour by hour."""

    def __init__(self) -> None:
        self._told: dict[int, Array] = {}

    def note(self, outlook: Outlook, now: datetime) -> None:
        """Keep what is foretold, unless that of this hour is known already."""
        hour = (now - _EPOCH) // _HOUR
        if hour not in self._told:
            self._told[hour] = _by_hour(outlook, _EPOCH + hour * _HOUR)
        while (oldest := min(self._told)) <= hour - MEMORY // _HOUR:
            del self._told[oldest]

    @property
    def told(self) -> dict[int, list[float]]:
        """What is kept: by hour since 1970, what was foretold for it and the HOURS after it."""
        return {hour: values.tolist() for hour, values in self._told.items()}

    def restore(self, told: Mapping[int, Sequence[float]]) -> None:
        """Know again what was kept; rows of another length are left out."""
        rows = {hour: np.array(row, dtype=float) for hour, row in told.items()}
        self._told = {hour: row for hour, row in rows.items() if row.shape == (HOURS + 1,)}

    def correction(self, observed: Sequence[Sample], now: datetime) -> Correction | None:
        """Return how to correct what is foretold at `now`; None: too little is known.

        Args:
            observed: What came, oldest first. What was itself only forecast says nothing.
            now: Grid time.
        """
        known = [sample for sample in observed if sample.provenance in {"measured", "estimated"}]
        here = (now - _EPOCH) // _HOUR
        hours = [hour for hour in sorted(self._told) if hour <= here]
        if not known or not hours or (here - hours[0]) * _HOUR < LEAST:
            return None
        told = np.full((here - hours[0] + 1, HOURS + 1), np.nan)
        for row, hour in enumerate(range(hours[0], here + 1)):
            if hour in self._told:
                told[row] = self._told[hour]
            else:  # nobody asked: what had been told stood
                told[row, :-1] = told[row - 1, 1:]
        return _learnt(_in_force(known, hours[0], here), told)


def _by_hour(outlook: Outlook, begin: datetime) -> Array:
    """Return what is foretold for each hour from `begin` on; NaN where nothing is.

    Where it begins within the first hour, its first value stands for all of that.
    """
    starts = np.array([(each.since - begin) / _HOUR for each in outlook.samples])
    values = np.array([each.intensity_gco2e_per_kwh for each in outlook.samples])
    hours = np.arange(HOURS + 1)
    index = np.searchsorted(starts, hours, side="right") - 1
    covered = (hours > starts[0] - 1) & (hours < starts[-1] + outlook.step / _HOUR)
    return np.where(covered, values[np.maximum(index, 0)], np.nan)


def _in_force(known: Sequence[Sample], first: int, here: int) -> Array:
    """Return what came in each hour `first` .. `here`; NaN before and after what is known."""
    starts = np.array([(sample.since - _EPOCH) / _HOUR for sample in known])
    values = np.array([sample.intensity_gco2e_per_kwh for sample in known])
    hours = np.arange(first, here + 1)
    index = np.searchsorted(starts, hours, side="right") - 1
    inside = (index >= 0) & (hours < starts[-1] + 1)
    return np.where(inside, values[np.maximum(index, 0)], np.nan)


def _learnt(came: Array, told: Array) -> Correction | None:
    """Return the corrections for the newest row; None: no error of the last day is known.

    Args:
        came: What came, by hour; shape (hours,).
        told: What was foretold, by hour of issue and hours ahead; shape (hours, HOURS + 1).
    """
    count = len(came)
    at_once = came - told[:, 0]
    known = np.flatnonzero(np.isfinite(at_once))
    lag = count - 1 - int(known[-1]) if len(known) else count
    if lag >= _DAY_H:
        return None
    lately = _lately(at_once, lag)
    found = np.full((3, len(_KNOTS)), np.nan)
    for column, ahead in enumerate(_KNOTS):
        errors = came[ahead:] - told[: count - ahead, ahead]
        features = np.column_stack([lately, _at_that_time(at_once, ahead, lag)])
        usable = np.flatnonzero(np.isfinite(errors) & np.isfinite(features[:-ahead]).all(axis=1))
        if len(usable) < _LEAST_ERRORS or not np.isfinite(features[-1]).all():
            continue
        weights = np.full(len(usable), 1 / _DAY_H)
        fit = ridge(features[usable], errors[usable], weights, _PENALTY_DAYS)
        left = errors[usable] - features[usable] @ fit.coefficients
        shift = float(features[-1] @ fit.coefficients)
        low, high = quantiles(left, weights, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
        found[:, column] = shift, shift + min(low, 0.0), shift + max(high, 0.0)
    return Correction(*(np.interp(np.arange(HOURS + 1), _KNOTS, each) for each in found))


def _lately(error: Array, lag: int) -> Array:
    """Return, for each hour, the error known last, its change, and its means; and a constant.

    Args:
        error: Of what was foretold for the hour itself, by hour.
        lag: Hours until an error is known.
    """
    last = np.arange(len(error)) - lag
    features = [
        _at(error, last),
        np.nan_to_num(_at(error, last) - _at(error, last - 1)),
        _mean([_at(error, last - back) for back in range(_DAY_H)]),
        _mean([_at(error, last - back) for back in range(7 * _DAY_H)]),
        np.ones(len(error)),
    ]
    return np.stack(features, axis=1)


def _at_that_time(error: Array, ahead: int, lag: int) -> Array:
    """Return, for each hour, the errors at the time of day `ahead` hours later, on past days.

    Args:
        error: Of what was foretold for the hour itself, by hour.
        ahead: Hours.
        lag: Hours until an error is known.
    """
    days_back = -(-(ahead + lag) // _DAY_H)
    target = np.arange(len(error)) + ahead
    days = [_at(error, target - (days_back + day) * _DAY_H) for day in range(3)]
    mean = _mean(days)
    return np.stack([np.where(np.isfinite(days[0]), days[0], mean), mean], axis=1)


def _at(values: Array, index: NDArray[np.intp]) -> Array:
    """Return values by index; NaN before the first."""
    return np.where(index >= 0, values[np.maximum(index, 0)], np.nan)


def _mean(rows: Sequence[Array]) -> Array:
    """Return the mean over the rows, of those that are numbers."""
    stacked = np.stack(rows)
    known = np.isfinite(stacked)
    count = known.sum(axis=0)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)

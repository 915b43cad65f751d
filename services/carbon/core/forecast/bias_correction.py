"""Bias correction of a provider's forecasts by the errors of its earlier ones.

Forecasts are recorded once an hour and kept for MEMORY. For each hour ahead, a small ridge
regression explains their errors by the errors known at the time of issue: of the last hour, of the
last day, at that time of day. A provider that has been too low all day is corrected upwards, and
the bounds are quantiles of the residuals.

Source: the residual correction of model output statistics (Glahn and Lowry, 1972), made adaptive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from services.carbon.core.forecast.regression import COVERAGE, Array, quantiles, ridge
from services.carbon.core.model import Outlook, Sample

MEMORY = timedelta(days=28)
MIN_RECORD = timedelta(days=3)
"""Length of the record below which there is no correction."""

HOURS = 48

_HOUR = timedelta(hours=1)
_DAY_H = 24
_PENALTY_DAYS = 5.0
_MIN_ERRORS = 24
_KNOTS = (*range(1, 7), *range(9, HOURS + 1, 3))
"""Hours ahead with a regression; between them, corrections are interpolated."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ProviderForecast:
    """A provider's forecast with its record.

    Attributes:
        name: Name of the provider.
        outlook: The forecast.
        record: Earlier forecasts.
    """

    name: str
    outlook: Outlook
    record: ForecastRecord

    def correction(self, observed: Sequence[Sample], now: datetime) -> Correction | None:
        """Return its correction; None: the record is too short.

        Args:
            observed: True values, oldest first.
            now: Grid time.
        """
        self.record.note(self.outlook, now)  # it may be an hour old, and is the newest
        return self.record.correction(observed, now)


@dataclass(frozen=True, slots=True)
class Correction:
    """Addends to a provider's forecast by hours ahead: shape (HOURS + 1,), gCO2e/kWh.

    NaN where the record is too short.

    Attributes:
        shift: Expected error.
        low, high: An outcome lies between forecast + low and forecast + high with a probability of
            COVERAGE.
    """

    shift: Array
    low: Array
    high: Array


class ForecastRecord:
    """A provider's earlier forecasts by hour of issue."""

    def __init__(self) -> None:
        self._issued: dict[int, Array] = {}

    def note(self, outlook: Outlook, now: datetime) -> None:
        """Record a forecast, unless one of this hour is recorded already."""
        hour = (now - _EPOCH) // _HOUR
        if hour not in self._issued:
            self._issued[hour] = _by_hour(outlook, _EPOCH + hour * _HOUR)
        while (oldest := min(self._issued)) <= hour - MEMORY // _HOUR:
            del self._issued[oldest]

    @property
    def issued(self) -> dict[int, list[float]]:
        """The record: by hour since 1970, the forecast for it and the HOURS after it."""
        return {hour: values.tolist() for hour, values in self._issued.items()}

    def restore(self, issued: Mapping[int, Sequence[float]]) -> None:
        """Replace the record by a saved one; rows of another length are left out."""
        rows = {hour: np.array(row, dtype=float) for hour, row in issued.items()}
        self._issued = {hour: row for hour, row in rows.items() if row.shape == (HOURS + 1,)}

    def correction(self, observed: Sequence[Sample], now: datetime) -> Correction | None:
        """Return the correction of a forecast issued at `now`; None: the record is too short.

        Args:
            observed: True values, oldest first; forecast values among them are ignored.
            now: Grid time.
        """
        known = [sample for sample in observed if sample.provenance in {"measured", "estimated"}]
        here = (now - _EPOCH) // _HOUR
        hours = [hour for hour in sorted(self._issued) if hour <= here]
        if not known or not hours or (here - hours[0]) * _HOUR < MIN_RECORD:
            return None
        issued = np.full((here - hours[0] + 1, HOURS + 1), np.nan)
        for row, hour in enumerate(range(hours[0], here + 1)):
            if hour in self._issued:
                issued[row] = self._issued[hour]
            else:  # the forecast of the hour before stays in force
                issued[row, :-1] = issued[row - 1, 1:]
        return _correction(_in_force(known, hours[0], here), issued)


def _by_hour(outlook: Outlook, begin: datetime) -> Array:
    """Return the forecast for each hour from `begin` on; NaN where there is none.

    If it begins within the first hour, its first value holds for that hour.
    """
    starts = np.array([(each.since - begin) / _HOUR for each in outlook.samples])
    values = np.array([each.intensity_gco2e_per_kwh for each in outlook.samples])
    hours = np.arange(HOURS + 1)
    index = np.searchsorted(starts, hours, side="right") - 1
    covered = (hours > starts[0] - 1) & (hours < starts[-1] + outlook.step / _HOUR)
    return np.where(covered, values[np.maximum(index, 0)], np.nan)


def _in_force(known: Sequence[Sample], first: int, here: int) -> Array:
    """Return the true values of the hours `first` .. `here`; NaN before and after those known."""
    starts = np.array([(sample.since - _EPOCH) / _HOUR for sample in known])
    values = np.array([sample.intensity_gco2e_per_kwh for sample in known])
    hours = np.arange(first, here + 1)
    index = np.searchsorted(starts, hours, side="right") - 1
    inside = (index >= 0) & (hours < starts[-1] + 1)
    return np.where(inside, values[np.maximum(index, 0)], np.nan)


def _correction(came: Array, issued: Array) -> Correction | None:
    """Return the correction of the newest row; None: no error of the last day is known.

    Args:
        came: True values by hour, shape (hours,).
        issued: Forecasts by hour of issue and hours ahead, shape (hours, HOURS + 1).
    """
    count = len(came)
    at_once = came - issued[:, 0]
    known = np.flatnonzero(np.isfinite(at_once))
    lag = count - 1 - int(known[-1]) if len(known) else count
    if lag >= _DAY_H:
        return None
    lately = _lately(at_once, lag)
    found = np.full((3, len(_KNOTS)), np.nan)
    for column, ahead in enumerate(_KNOTS):
        errors = came[ahead:] - issued[: count - ahead, ahead]
        features = np.column_stack([lately, _at_that_time(at_once, ahead, lag)])
        usable = np.flatnonzero(np.isfinite(errors) & np.isfinite(features[:-ahead]).all(axis=1))
        if len(usable) < _MIN_ERRORS or not np.isfinite(features[-1]).all():
            continue
        weights = np.full(len(usable), 1 / _DAY_H)
        fit = ridge(features[usable], errors[usable], weights, _PENALTY_DAYS)
        left = errors[usable] - features[usable] @ fit.coefficients
        shift = float(features[-1] @ fit.coefficients)
        low, high = quantiles(left, weights, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
        found[:, column] = shift, shift + min(low, 0.0), shift + max(high, 0.0)
    return Correction(*(np.interp(np.arange(HOURS + 1), _KNOTS, each) for each in found))


def _lately(error: Array, lag: int) -> Array:
    """Return features of each hour: the last known error, its change, its means, a constant.

    Args:
        error: Errors of the forecasts for the hour of issue, by hour.
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
        error: Errors of the forecasts for the hour of issue, by hour.
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
    """Return the mean over the rows, NaN excepted."""
    mean: Array = np.ma.masked_invalid(np.stack(rows)).mean(axis=0).filled(np.nan)
    return mean

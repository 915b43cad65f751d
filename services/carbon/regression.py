"""The mathematics of the forecast: a daily profile, and what the recent past says beyond it.

With `y` the intensity, `t` the present and `h` the hours ahead, the forecast is

    profile(t + h) + exp(-h / FADE_H) * (y(t) - profile(t)) + correction_h

* `profile` is the mean of the same time of day over the last week, or over the days there are:
  seasonal. The second term is persistence that fades: what is unusual now will pass.
* Where the last day or the present value itself would have been closer, the forecast moves there,
  half of the way or all of it. That is part of `correction_h`.
* The rest of it is linear in a dozen differences (of the last hour, day, week and month from each
  other), one ridge regression per hour ahead, fitted to the errors of the past. Its penalty is a
  number of days: with little history there is next to no correction, and it grows as evidence
  comes. Outliers count less (rounds of reweighting), origins at this time of day count more
  (mornings are like mornings).

Between whole hours, corrections are interpolated, so that steps of minutes cost nothing. Nothing
is trained ahead and nothing is kept: the same past gives the same forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

COVERAGE = 0.8
HOURS_PER_DAY = 24
WEEK = 7
MONTH = 28
FADE_H = 36.0
LEAST_DAYS = 18
"""Days of history from which errors of the past can be learnt from."""

_PENALTY_DAYS = 20.0  # of evidence, for a day ahead; in proportion for other distances
_ROUNDS = 3
_SMALL = 0.3  # of the median error: smaller errors weigh no more
_SHARPNESS = 1.0  # of the preference for origins at this time of day (von Mises)
_DENSE_H = 6  # below it every hour is an origin, beyond it every third: neighbours say the same
_SPREAD = 0.3  # std / mean of a grid of which nothing is known (real ones: 0.1 .. 0.6)
_NORMAL_QUANTILE = 1.2816  # of 0.9
_TINY = 1e-9
_BLENDS = ((1, 0, 0), (0.5, 0.5, 0), (0, 1, 0), (0.5, 0, 0.5), (0, 0, 1), (0, 0.5, 0.5))
"""Shares of three guesses: profile and fading persistence, the last day, the present value."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected values, and bounds that they stay within with a probability of COVERAGE.

    Attributes:
        expected, low, high: Shape (ahead + 1,); the first is the present, which is known.
        method: What the past was long enough for.
    """

    expected: Array
    low: Array
    high: Array
    method: str


def predict(past: Array, per_hour: int, ahead: int) -> Prediction:
    """Predict a series from its past.

    Args:
        past: Values >= 0 at regular steps, oldest first, the present last; at least one.
        per_hour: Steps per hour, >= 1.
        ahead: Steps to predict, >= 0.
    """
    hours = np.arange(ahead + 1) / per_hour
    per_day = per_hour * HOURS_PER_DAY
    days = (len(past) - 1) // per_day
    if days == 0:
        width = _guess(past, past.mean()) * _growth(hours)
        return _bounded(np.full(ahead + 1, past[-1]), -width, width, "persistence")
    recent = past[-min(days, WEEK) * per_day :].reshape(-1, per_day)
    profile = np.tile(recent.mean(axis=0), ahead // per_day + 1)[:ahead]
    unusual = past[-1] - past[-1 - per_day :: -per_day][:WEEK].mean()
    base = np.concatenate([past[-1:], profile + np.exp(-hours[1:] / FADE_H) * unusual])
    if days < LEAST_DAYS:
        width = _guess(recent, recent.mean(axis=0)) * _growth(hours)
        return _bounded(base, -width, width, "seasonal")
    evidence = _Evidence(past, per_hour)
    knots = np.arange(-(-ahead // per_hour) + 1)
    learnt = [evidence.correction(int(hour)) if hour else (0.0, 0.0, 0.0) for hour in knots]
    shift, low, high = (np.interp(hours, knots, each) for each in zip(*learnt, strict=True))
    return _bounded(base + shift, low, high, "seasonal-regression")


class _Evidence:
    """What the past would have told at each of its instants, and what then came.

    Args:
        past: At least LEAST_DAYS.
        per_hour: Steps per hour.
    """

    def __init__(self, past: Array, per_hour: int) -> None:
        self._y, self._hour, self._day = past, per_hour, per_hour * HOURS_PER_DAY
        month = min(MONTH, max(WEEK, len(past) // self._day // 4))
        self._first = (max(WEEK, month) + 1) * self._day
        self._profile = _same_time_mean(past, self._day, WEEK)
        self._slow_profile = _same_time_mean(past, self._day, month)
        self._day_mean = _trailing_mean(past, self._day)
        self._week_mean = _trailing_mean(past, self._day * WEEK)
        self._month_mean = _trailing_mean(past, self._day * month)

    def correction(self, hour: int) -> tuple[float, float, float]:
        """Return the correction `hour` hours ahead, and the bounds of its error."""
        now, ahead = len(self._y) - 1, hour * self._hour
        stride = self._hour * (1 if hour < _DENSE_H else 3)
        origins = np.arange(now - ahead, self._first - 1, -stride)
        guesses, features = self._known(origins, ahead)
        guessed, present = self._known(np.array([now]), ahead)
        came = self._y[origins + ahead]
        turn = 2 * np.pi / self._day
        weights = np.exp(_SHARPNESS * (np.cos(turn * (origins - now)) - 1)) * stride / self._day
        penalty = _PENALTY_DAYS * hour / HOURS_PER_DAY
        blend = min(_BLENDS, key=lambda shares: float(weights @ np.abs(came - guesses @ shares)))
        errors = came - guesses @ blend
        fit = _ridge(features, errors, weights, penalty)
        # Origins closer than a day, or than the distance, see the same error: count them as one.
        independent = weights.sum() * HOURS_PER_DAY / min(hour, HOURS_PER_DAY)
        unseen = np.sqrt(independent / max(independent - fit.freedom, 1.0))
        left = (errors - features @ fit.coefficients) * unseen
        low, high = _quantiles(left, weights, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
        expected = guessed @ blend + present @ fit.coefficients
        return float(expected[0] - guessed[0, 0]), low, high

    def _known(self, origins: Indices, ahead: int) -> tuple[Array, Array]:
        """Return guesses of what comes `ahead` steps after each origin, and what may correct them.

        Shapes (origins, 3) and (origins, features).
        """
        y, hour, day, week = self._y, self._hour, self._day, self._day * WEEK
        target = origins + ahead
        same_time = target - -(-ahead // day) * day
        same_weekday = target - -(-ahead // week) * week
        profile = self._profile[same_time]
        now, usual = y[origins], self._profile[origins - day]
        unusual = now - usual
        features = [
            unusual,
            unusual - (y[origins - hour] - self._profile[origins - hour - day]),
            now - y[origins - hour],
            now - profile,
            now - self._day_mean[origins],
            y[origins - day] - usual,
            y[same_time] - profile,
            y[same_time - day] - profile,
            y[same_weekday] - profile,
            self._slow_profile[same_time] - profile,
            self._day_mean[origins] - self._week_mean[origins],
            self._month_mean[origins] - self._week_mean[origins],
        ]
        seasonal = profile + np.exp(-ahead / hour / FADE_H) * unusual
        return np.stack([seasonal, y[same_time], now], axis=1), np.stack(features, axis=1)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Coefficients by feature, and how many degrees of freedom the penalty left them."""

    coefficients: Array
    freedom: float


def _ridge(features: Array, errors: Array, weights: Array, penalty: float) -> _Fit:
    """Explain `errors` by `features`; large errors count by their size, not its square.

    Iteratively reweighted least squares on features of unit size.
    """
    sizes = np.sqrt(weights @ features**2 / weights.sum()) + _TINY
    scaled = features / sizes
    ridge = (penalty + _TINY) * np.eye(features.shape[1])
    robust = weights
    for _ in range(_ROUNDS):
        weighted = scaled * robust[:, None]
        gram = scaled.T @ weighted
        coefficients = np.linalg.solve(gram + ridge, errors @ weighted)
        left = np.abs(errors - scaled @ coefficients)
        robust = weights / np.maximum(left / (np.median(left) + _TINY), _SMALL)
    freedom = float(np.trace(np.linalg.solve(gram + ridge, gram)))
    return _Fit(coefficients / sizes, freedom)


def _quantiles(values: Array, weights: Array, levels: tuple[float, float]) -> tuple[float, float]:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp(levels, reached / weights.sum(), values[order])
    return float(low), float(high)


def _same_time_mean(y: Array, day: int, days: int) -> Array:
    """Return, at each step, the mean over this time of day on the last `days` days."""
    mean = np.full(len(y), np.nan)
    start = (days - 1) * day
    shifted = (y[start - back * day : len(y) - back * day] for back in range(days))
    mean[start:] = sum(shifted, np.zeros(len(y) - start)) / days
    return mean


def _trailing_mean(y: Array, steps: int) -> Array:
    mean = np.full(len(y), np.nan)
    total = np.concatenate([[0.0], np.cumsum(y)])
    mean[steps - 1 :] = (total[steps:] - total[:-steps]) / steps
    return mean


def _guess(seen: Array, usual: Array) -> float:
    """Return a standard deviation from little evidence: what was seen, and a day's prior."""
    days = len(seen) if seen.ndim > 1 else 0
    observed = float(np.mean((seen - usual) ** 2))
    prior = (_SPREAD * float(seen.mean())) ** 2
    return float(np.sqrt((days * observed + prior) / (days + 1)))


def _growth(hours: Array) -> Array:
    """Return the half width of the interval in standard deviations: none now, all in the end."""
    width: Array = _NORMAL_QUANTILE * np.sqrt(1 - np.exp(-2 * hours / FADE_H))
    return width


def _bounded(expected: Array, low: Array, high: Array, method: str) -> Prediction:
    expected = np.maximum(expected, 0.0)
    return Prediction(
        expected,
        np.clip(expected + low, 0.0, expected),
        np.maximum(expected + high, expected),
        method,
    )

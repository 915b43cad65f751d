"""The forecast's model: a daily profile, corrected by the recent past.

With `y` the intensity, `t` the present and `h` the hours ahead, the forecast is

    profile(t + h) + exp(-h / FADE_H) * (y(t) - profile(t)) + correction_h

* `profile` is the mean of the same time of day over the last week, or over the days available:
  seasonal. The second term is decaying persistence: the present deviation will pass.
* If the last day, the present value or the profile alone would have been closer in the past, the
  forecast is blended with it, by weights that fall with the error of each. That is part of
  `correction_h`.
* The rest of `correction_h` is linear in a dozen differences (between the last hour, day, week and
  month), one ridge regression per hour ahead, fitted to the past errors. Its penalty is a number
  of days: with little history there is almost no correction. Outliers weigh less (rounds of
  reweighting), origins at this time of day weigh more.
* The bounds are quantiles of the residuals, recent ones weighing more; where they are few, they
  are combined with the spread of the observed days and a prior of it.

Between whole hours, corrections are interpolated, so that steps of minutes cost nothing. Nothing
is trained in advance or kept: the same past gives the same forecast.
"""

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
MIN_DAYS = 3
"""Days of history that the regression needs."""

_MIN_SPAN_DAYS = 1.5  # of origins that the correction of a distance needs
_PENALTY_DAYS = 30.0  # for a day ahead; proportional for other distances
_ROUNDS = 3
_SMALL = 0.3  # of the median error, below which weights do not grow
_SHARPNESS = 1.0  # of the preference for origins at this time of day (von Mises)
_DENSE_H = 6  # below it every hour is an origin, beyond it every third
_HALF_LIFE_DAYS = 40.0  # of the residuals of the bounds: the spread of a grid changes
_PRIOR_WEIGHT = 6.0  # of the bounds' prior, in independent errors
_SPREAD = 0.3  # std / mean of an unknown grid (real ones: 0.1 .. 0.6)
_NORMAL_QUANTILE = 1.2816  # of 0.9
_TINY = 1e-9
_BLENDS = np.array(
    [
        *[(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)],
        *[(0.5, 0.5, 0, 0), (0.5, 0, 0.5, 0), (0.5, 0, 0, 0.5), (0, 0.5, 0.5, 0), (0, 0.5, 0, 0.5)],
    ]
).T
"""Columns: shares of profile with decaying persistence, the last day, the present, the profile."""

_SELECTIVITY = 10.0  # a blend with a tenth more error than the best has 1/e of its share
_HALF_EVIDENCE_DAYS = 20.0  # for a day ahead, at which the selectivity is half


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected values, and bounds that they stay within with a probability of COVERAGE.

    Attributes:
        expected, low, high: Shape (ahead + 1,); the first is the present, which is known.
        method: Method that the past was long enough for.
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
    days = (len(past) - 1) // (per_hour * HOURS_PER_DAY)
    if days == 0:
        width = _SPREAD * float(past.mean()) * _growth(hours)
        return _bounded(np.full(ahead + 1, past[-1]), -width, width, "persistence")
    evidence = _Evidence(past, per_hour)
    knots = np.arange(-(-ahead // per_hour) + 1)
    corrections = [evidence.correction(int(hour)) if hour else (0.0, 0.0, 0.0) for hour in knots]
    shift, low, high = (np.interp(hours, knots, each) for each in zip(*corrections, strict=True))
    method = "seasonal" if days < MIN_DAYS else "seasonal-regression"
    return _bounded(evidence.seasonal(ahead) + shift, low, high, method)


class _Evidence:
    """Forecasts that could have been made in the past, and the values that followed.

    Args:
        past: Values of at least a day.
        per_hour: Steps per hour.
    """

    def __init__(self, past: Array, per_hour: int) -> None:
        self._y, self._hour, self._day = past, per_hour, per_hour * HOURS_PER_DAY
        days = (len(past) - 1) // self._day
        month = min(MONTH, max(WEEK, days // 4))
        self._first = min(month + 1, max(1, days // 3)) * self._day
        self._profile = _same_time_mean(past, self._day, WEEK)
        self._slow_profile = _same_time_mean(past, self._day, month)
        self._day_mean = _trailing_mean(past, self._day)
        self._week_mean = _trailing_mean(past, self._day * WEEK)
        self._month_mean = _trailing_mean(past, self._day * month)
        self._spread = _spread(past[-min(days, WEEK) * self._day :].reshape(-1, self._day))

    def seasonal(self, ahead: int) -> Array:
        """Return the present, then the profile with decaying persistence, step by step."""
        now, steps = len(self._y) - 1, np.arange(1, ahead + 1)
        profile = self._profile[now + steps - -(-steps // self._day) * self._day]
        unusual = self._y[now] - self._profile[now - self._day]
        faded = np.exp(-steps / self._hour / FADE_H) * unusual
        return np.concatenate([self._y[-1:], profile + faded])

    def correction(self, hour: int) -> tuple[float, float, float]:
        """Return the correction `hour` hours ahead, and the bounds of its error."""
        now, ahead = len(self._y) - 1, hour * self._hour
        stride = self._hour * (1 if hour < _DENSE_H else 3)
        origins = np.arange(now - ahead, self._first - 1, -stride)
        unknown = self._spread * float(_growth(np.array(hour)))
        if len(origins) * stride < _MIN_SPAN_DAYS * self._day:
            return 0.0, -unknown, unknown
        bases, features = self._known(origins, ahead)
        base, present = self._known(np.array([now]), ahead)
        came = self._y[origins + ahead]
        turn = 2 * np.pi / self._day
        weights = np.exp(_SHARPNESS * (np.cos(turn * (origins - now)) - 1)) * stride / self._day
        blend = _blend(bases, came, weights, hour / HOURS_PER_DAY)
        errors = came - bases @ blend
        fit = ridge(features, errors, weights, _PENALTY_DAYS * hour / HOURS_PER_DAY)
        recent = weights * 0.5 ** ((now - origins) / self._day / _HALF_LIFE_DAYS)
        # Origins closer than the distance see the same error: count them as one.
        independent = recent.sum() * HOURS_PER_DAY / hour
        freedom = fit.freedom * recent.sum() / weights.sum()
        unseen = np.sqrt(independent / max(independent - freedom, min(1.0, independent)))
        left = (errors - features @ fit.coefficients) * unseen
        seen = quantiles(left, recent, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
        trust = independent / (independent + _PRIOR_WEIGHT)
        low, high = (
            trust * bound + (1 - trust) * prior
            for bound, prior in zip(seen, (-unknown, unknown), strict=True)
        )
        expected = base @ blend + present @ fit.coefficients
        return float(expected[0] - base[0, 0]), low, high

    def _known(self, origins: Indices, ahead: int) -> tuple[Array, Array]:
        """Return the four base forecasts `ahead` steps after each origin, and the features.

        Shapes (origins, 4) and (origins, features). Where the past is too short for a lag, a
        shorter one is used.
        """
        y, hour, day, week = self._y, self._hour, self._day, self._day * WEEK
        target = origins + ahead
        same_time = target - -(-ahead // day) * day
        same_weekday = target - -(-ahead // week) * week
        same_weekday = np.where(same_weekday < 0, same_time, same_weekday)
        day_before = np.where(same_time < day, same_time, same_time - day)
        profile = self._profile[same_time]
        now, usual = y[origins], self._profile[origins - day]
        before, usual_before = y[origins - hour], self._profile[np.maximum(origins - hour - day, 0)]
        unusual = now - usual
        features = [
            unusual,
            unusual - (before - usual_before),
            now - before,
            now - profile,
            now - self._day_mean[origins],
            y[origins - day] - usual,
            y[same_time] - profile,
            y[day_before] - profile,
            y[same_weekday] - profile,
            self._slow_profile[same_time] - profile,
            self._day_mean[origins] - self._week_mean[origins],
            self._month_mean[origins] - self._week_mean[origins],
        ]
        seasonal = profile + np.exp(-ahead / hour / FADE_H) * unusual
        bases = [seasonal, y[same_time], now, profile]
        return np.stack(bases, axis=1), np.stack(features, axis=1)


def _blend(bases: Array, came: Array, weights: Array, days: float) -> Array:
    """Return the weights of the base forecasts, by the past errors of each blend.

    Args:
        bases: Base forecasts, shape (origins, 4).
        came: True values, shape (origins,).
        weights: Weight of each origin, days.
        days: Distance of the forecasts.
    """
    losses = weights @ np.abs(came[:, None] - bases @ _BLENDS)
    evidence = weights.sum() / (weights.sum() + _HALF_EVIDENCE_DAYS * days)
    shares = np.exp(-_SELECTIVITY * evidence * (losses / (losses.min() + _TINY) - 1))
    blend: Array = _BLENDS @ (shares / shares.sum())
    return blend


@dataclass(frozen=True, slots=True)
class Fit:
    """A regression. Attributes: coefficients (by feature), freedom (effective degrees)."""

    coefficients: Array
    freedom: float


def ridge(features: Array, errors: Array, weights: Array, penalty: float) -> Fit:
    """Regress `errors` on `features`; large errors weigh by their size, not its square.

    Iteratively reweighted least squares on features of unit size.

    Args:
        features: Features, shape (origins, features).
        errors: Errors, shape (origins,).
        weights: Weights, shape (origins,).
        penalty: Penalty on the coefficients, in the unit of the weights.
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
    return Fit(coefficients / sizes, freedom)


def quantiles(values: Array, weights: Array, levels: tuple[float, float]) -> tuple[float, float]:
    """Return two quantiles of weighted values; `levels` within 0..1."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp(levels, reached / weights.sum(), values[order])
    return float(low), float(high)


def _same_time_mean(y: Array, day: int, days: int) -> Array:
    """Return, at each step, the mean at this time of day over up to `days` days."""
    total, count = np.zeros(len(y)), np.zeros(len(y))
    for start in range(0, min(days * day, len(y)), day):
        total[start:] += y[: len(y) - start]
        count[start:] += 1
    return total / count


def _trailing_mean(y: Array, steps: int) -> Array:
    """Return, at each step, the mean over up to `steps` steps."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    end = np.arange(1, len(y) + 1)
    begin = np.maximum(end - steps, 0)
    mean: Array = (total[end] - total[begin]) / (end - begin)
    return mean


def _spread(days: Array) -> float:
    """Return the standard deviation of a grid from its profile, from up to a week of `days`.

    A few days underestimate it, for the profile is their own mean: the observed spread is scaled
    up, and combined with a prior for the days missing to a week.

    Args:
        days: Values, shape (days, steps).
    """
    count, missing = len(days), 1 - len(days) / WEEK
    inflation = (count + 3) / max(count - 1, 1)
    observed = inflation * float(np.mean((days - days.mean(axis=0)) ** 2))
    unknown = (_SPREAD * float(days.mean())) ** 2
    return float(np.sqrt((count * observed + missing * unknown) / (count + missing)))


def _growth(hours: Array) -> Array:
    """Return the half width of the interval in standard deviations, growing from 0."""
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

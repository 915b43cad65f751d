"""Forecast of a zone's intensity from its history alone."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import mode

import numpy as np
from numpy.typing import NDArray

from cinquefoil.carbon.v1.records import Forecast, ForecastPeriod
from services.carbon.core.forecast.regression import Array, predict
from services.carbon.core.model import Sample

MAX_HORIZON = timedelta(hours=48)
"""Horizon of the forecasts."""

DEPTH = timedelta(days=112)
"""Length of the history that a forecast uses."""

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_STEPS = tuple(timedelta(minutes=minutes) for minutes in (60, 30, 20, 15, 10, 5))


def forecast(history: Sequence[Sample], now: datetime) -> Forecast:
    """Forecast the next MAX_HORIZON.

    Periods are as long as most steps of the history, rounded down to a divisor of the hour, and
    aligned to its newest step: the first period is in force at `now`, and its intensity is known.

    Args:
        history: At least one sample, oldest first, each in force until the next and the last at
            `now`. None is later than `now`.
        now: Grid time.
    """
    step = _step(history)
    newest = history[-1].since
    start = newest + (now - newest) // step * step
    past = _regular(history, start, step)
    ahead = -(-MAX_HORIZON // step)
    found = predict(past, _HOUR // step, ahead)
    bounds = zip(found.expected.tolist(), found.low.tolist(), found.high.tolist(), strict=True)
    periods = (
        ForecastPeriod(start + index * step, step, expected, low, high)
        for index, (expected, low, high) in enumerate(bounds)
    )
    return Forecast(tuple(periods), found.method)


def _step(history: Sequence[Sample]) -> timedelta:
    recent = [later.since - earlier.since for earlier, later in pairwise(history[-100:])]
    usual = mode(recent) if recent else _HOUR
    return next((step for step in _STEPS if step <= usual), _STEPS[-1])


def _regular(history: Sequence[Sample], end: datetime, step: timedelta) -> Array:
    """Return the intensity at every `step` up to `end`, oldest first, at most DEPTH back."""
    first = max(bisect_right(history, end - DEPTH, key=lambda sample: sample.since) - 1, 0)
    kept = history[first:]
    count = min((end - kept[0].since) // step, DEPTH // step) + 1
    back_s = np.arange(count - 1, -1, -1) * step.total_seconds()
    starts_s = np.array([(sample.since - end).total_seconds() for sample in kept])
    in_force = np.searchsorted(starts_s, -back_s, side="right") - 1
    values = np.array([sample.intensity_gco2e_per_kwh for sample in kept])[in_force]
    held = np.array([sample.provenance == "held" for sample in kept])[in_force]
    return _bridged(values, held, _DAY // step)


def _bridged(values: Array, held: NDArray[np.bool_], day: int) -> Array:
    """Replace the held values of a past outage by those of the day before.

    Held values are no observations of the grid.
    """
    known = np.flatnonzero(~held)
    for index in np.flatnonzero(held[: known[-1]] if len(known) else []):
        if index >= day:
            values[index] = values[index - day]
    return values

"""Combination of a provider's forecast with our own."""

from bisect import bisect_right
from dataclasses import replace
from datetime import timedelta

import numpy as np

from cinquefoil.carbon.v1.records import Forecast, ForecastPeriod
from services.carbon.core.forecast.bias_correction import HOURS, Correction
from services.carbon.core.model import Outlook

_HOUR = timedelta(hours=1)


def combined(
    own: Forecast, outlook: Outlook, name: str, correction: Correction | None = None
) -> Forecast:
    """Return our forecast combined with the provider's values, where there are any.

    The period in force stays, for its intensity is known. With a correction, the provider's
    corrected values are averaged with ours, weighted by the widths of the bounds: an hour ahead the
    present value is the better predictor. Without one, the provider's values replace ours, and our
    bounds move along: they are as wide as the grid's history requires.

    Args:
        own: Our forecast.
        outlook: The provider's forecast, with at least one sample.
        name: Name of the provider.
        correction: Correction from its record; None: none yet.
    """
    first, *later = own.periods
    starts = [sample.since for sample in outlook.samples]
    end = starts[-1] + outlook.step

    def of(period: ForecastPeriod) -> ForecastPeriod:
        last = bisect_right(starts, period.since + period.length - period.length / 1000)
        begin = bisect_right(starts, period.since) - 1
        if begin < 0 or period.since >= end:
            return period
        values = [each.intensity_gco2e_per_kwh for each in outlook.samples[begin:last]]
        mean = sum(values) / len(values)
        hours = (period.since - first.since) / _HOUR
        corrected = None if correction is None else _corrected(period, mean, hours, correction)
        return corrected or _replaced(period, mean)

    return Forecast((first, *map(of, later)), f"provider:{name}")


def _replaced(period: ForecastPeriod, mean: float) -> ForecastPeriod:
    change = mean - period.intensity_gco2e_per_kwh
    return replace(
        period,
        intensity_gco2e_per_kwh=mean,
        low_gco2e_per_kwh=max(period.low_gco2e_per_kwh + change, 0.0),
        high_gco2e_per_kwh=period.high_gco2e_per_kwh + change,
    )


def _corrected(
    own: ForecastPeriod, mean: float, hours: float, correction: Correction
) -> ForecastPeriod | None:
    """Return the average of both forecasts; None: no correction for this distance."""
    corrections = (correction.shift, correction.low, correction.high)
    shift, low, high = (float(np.interp(hours, range(HOURS + 1), each)) for each in corrections)
    if not np.isfinite(shift + low + high):
        return None
    ours, theirs = own.high_gco2e_per_kwh - own.low_gco2e_per_kwh, high - low
    share = theirs**4 / (ours**4 + theirs**4) if ours + theirs > 0 else 0.0

    def joined(mine: float, other: float) -> float:
        return max(share * mine + (1 - share) * (mean + other), 0.0)

    return replace(
        own,
        intensity_gco2e_per_kwh=joined(own.intensity_gco2e_per_kwh, shift),
        low_gco2e_per_kwh=joined(own.low_gco2e_per_kwh, low),
        high_gco2e_per_kwh=joined(own.high_gco2e_per_kwh, high),
    )

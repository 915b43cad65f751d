"""A provider's own forecast in the form of ours."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from datetime import timedelta

import numpy as np

from services.carbon.core.forecast.bias_correction import HOURS, Correction
from services.carbon.core.model import Forecast, Period
from services.carbon.core.sources.provider import Outlook

_HOUR = timedelta(hours=1)


def provided(
    own: Forecast, outlook: Outlook, name: str, correction: Correction | None = None
) -> Forecast:
    """Return `own` with the provider's values where it gives any.

    The period in force stays: its intensity is known. Where the provider's record is known, its
    values are corrected, and ours join them where our bounds are not far wider: an hour ahead the
    present tells more than any model. Without a record it is believed, and our bounds move with
    its value: whoever is right about the mean, the grid is as unsteady as its history says.

    Args:
        own: Our forecast, for its periods and its bounds.
        outlook: The provider's, with at least one sample.
        name: Of the provider.
        correction: From its record; None: there is none.
    """
    first, *later = own.periods
    starts = [sample.since for sample in outlook.samples]
    end = starts[-1] + outlook.step

    def of(period: Period) -> Period:
        last = bisect_right(starts, period.since + period.length - period.length / 1000)
        begin = bisect_right(starts, period.since) - 1
        if begin < 0 or period.since >= end:
            return period
        values = [each.intensity_gco2e_per_kwh for each in outlook.samples[begin:last]]
        mean = sum(values) / len(values)
        hours = (period.since - first.since) / _HOUR
        corrected = None if correction is None else _corrected(period, mean, hours, correction)
        return corrected or _believed(period, mean)

    return Forecast((first, *map(of, later)), f"provider:{name}")


def _believed(period: Period, mean: float) -> Period:
    change = mean - period.intensity_gco2e_per_kwh
    return replace(
        period,
        intensity_gco2e_per_kwh=mean,
        low_gco2e_per_kwh=max(period.low_gco2e_per_kwh + change, 0.0),
        high_gco2e_per_kwh=period.high_gco2e_per_kwh + change,
    )


def _corrected(own: Period, mean: float, hours: float, correction: Correction) -> Period | None:
    """Return the two forecasts in one; None: nothing is known of this distance."""
    learnt = (correction.shift, correction.low, correction.high)
    shift, low, high = (float(np.interp(hours, range(HOURS + 1), each)) for each in learnt)
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

"""A provider's own forecast in the form of ours."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from services.carbon.domain import Forecast, Period
from services.carbon.sources.provider import Outlook


def provided(own: Forecast, outlook: Outlook, name: str) -> Forecast:
    """Return `own` with the provider's values where it gives any.

    The period in force stays: its intensity is known. Providers tell no bounds, so ours move with
    the value: whoever is right about the mean, the grid is as unsteady as its history says.

    Args:
        own: Our forecast, for its periods and its bounds.
        outlook: The provider's, with at least one sample.
        name: Of the provider.
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
        change = mean - period.intensity_gco2e_per_kwh
        return replace(
            period,
            intensity_gco2e_per_kwh=mean,
            low_gco2e_per_kwh=max(period.low_gco2e_per_kwh + change, 0.0),
            high_gco2e_per_kwh=period.high_gco2e_per_kwh + change,
        )

    return Forecast((first, *map(of, later)), f"provider:{name}")

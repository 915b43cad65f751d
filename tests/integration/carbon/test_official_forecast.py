"""The official British forecast, and ours on top of it."""

from bisect import bisect_left, bisect_right
from datetime import timedelta
from functools import cache
from statistics import fmean

import pytest

from services.carbon.core.forecast.bias_correction import (
    HOURS,
    ForecastRecord,
    ProviderForecast,
)
from services.carbon.core.forecast.combination import combined
from services.carbon.core.forecast.forecaster import forecast
from services.carbon.core.model import Outlook, Sample
from services.carbon.sources.csv_trace import read_trace
from tests.support.paths import PUBLISHED

HOUR = timedelta(hours=1)
OFFICIAL = PUBLISHED / "carbon_intensity/official"


@cache
def official() -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    came = read_trace(OFFICIAL / "UK-ESO_2021.csv")
    return came, read_trace(OFFICIAL / "UK-ESO_2021_forecast.csv")


@pytest.mark.skipif(not OFFICIAL.exists(), reason="the official forecast is not in this checkout")
def test_the_official_british_forecast_is_beaten_by_ours_on_top_of_it() -> None:
    """1, 6 and 24 hours ahead, through the year; `benchmarks.forecast` has more of it."""
    came, issued_samples = official()
    truth, starts = {each.since: each for each in came}, [each.since for each in issued_samples]
    record, errors = ForecastRecord(), dict[int, list[tuple[float, float]]]()
    for hour, sample in enumerate(came):
        now, first = sample.since, bisect_left(starts, sample.since)
        ahead = Outlook(issued_samples[first : bisect_right(starts, now + HOURS * HOUR)], HOUR, now)
        record.note(ahead, now)
        if hour < 24 * 28 or hour % 163:
            continue
        known = came[max(0, hour - 24 * 56) : hour + 1]
        issued = ProviderForecast("neso", ahead, record)
        correction = issued.correction(known, now)
        found = combined(forecast(known, now), ahead, "neso", correction)
        periods = {each.since: each.intensity_gco2e_per_kwh for each in found.periods}
        values = {each.since: each.intensity_gco2e_per_kwh for each in ahead.samples}
        for hours in (1, 6, 24):
            then = now + hours * HOUR
            if then in truth and then in values:
                value = truth[then].intensity_gco2e_per_kwh
                pair = abs(periods[then] - value), abs(values[then] - value)
                errors.setdefault(hours, []).append(pair)

    for hours, kept in errors.items():
        ours, theirs = (fmean(column) for column in zip(*kept, strict=True))
        assert ours < 0.95 * theirs, f"{hours} h ahead"

"""Load is forecast better than by its last minute, on traces made up and recorded."""

import csv
from pathlib import Path

import numpy as np
import pytest

from services.planner.core.forecast.load_forecast import (
    Forecaster,
    Interval,
)
from tests.support.paths import MADE_UP, PUBLISHED

TWITTER = PUBLISHED / "requests/twitter_2021_08_days00-13_1min.csv"
TRACES = [
    pytest.param(MADE_UP / "requests_by_minute.csv", id="made up"),
    pytest.param(
        TWITTER,
        id="published",
        marks=pytest.mark.skipif(not TWITTER.is_file(), reason="no traces beside the clone"),
    ),
]
MINUTE_S = 60.0


@pytest.mark.parametrize("path", TRACES)
def test_a_day_is_forecast_better_than_by_its_last_minute(path: Path) -> None:
    """The first day and a half of a trace, from no history at all; holes in it are no matter."""
    with path.open() as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["day"]) < 2]
    maxima = [float(row["max_rps"]) for row in rows[: 1440 + 700]]
    holes = [index for index, most in enumerate(maxima) if most == 0 or index % 1440 >= 1411]
    ours, naive, covered = [], [], []
    forecaster = Forecaster(MINUTE_S, 0.9)
    for minute, most in enumerate(maxima):
        if minute in holes:
            continue
        forecast = forecaster.forecast()
        if forecast is not None and forecast.start_s == minute * MINUTE_S:
            ours.append(abs(forecast.expected_rps - most))
            naive.append(abs(maxima[minute - 1] - most))
            covered.append(most <= forecast.high_rps)
        mean_rps = float(rows[minute]["mean_rps"])
        forecaster.observe(Interval(minute * MINUTE_S, mean_rps, most))

    assert np.mean(ours) < 0.9 * np.mean(naive)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)

"""Real load traces, and what is left out of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Skipped
from services.planner.core.forecast.load_forecast import Interval

DATA = Path(__file__).parents[1] / "../shared/data/requests"

MINUTE_S = 60
DAY_S = 86_400
HOLE_S = 84_661
"""The recording of every day stops at this second: a hole, not a calm."""


def twitter_minutes() -> list[Interval | None]:
    """Return the 14 days minute by minute; None: a hole of the recording.

    Days 0 and 1 are known by the second, so that these minutes say how they ended.
    """
    ends = twitter_seconds().reshape(-1, MINUTE_S)[:, -10:].mean(axis=1)
    found: list[Interval | None] = []
    for index, row in enumerate(_rows("twitter_2021_08_days00-13_1min.csv")):
        most_rps = float(row["max_rps"])
        whole = (int(row["minute_of_day"]) + 1) * MINUTE_S <= HOLE_S and most_rps > 0
        end_rps = float(ends[index]) if index < len(ends) else None
        start_s = float(index * MINUTE_S)
        found.append(
            Interval(start_s, float(row["mean_rps"]), most_rps, end_rps) if whole else None
        )
    return found


def twitter_seconds() -> NDArray[np.float64]:
    """Return the load of days 0 and 1 by the second, shape (172,800,), req/s; holes are 0."""
    rows = _rows("twitter_2021_08_days00-01_1s.csv")
    return np.array([float(row["requests_per_second"]) for row in rows])


def nasa_minutes() -> list[Interval | None]:
    """Return 14 days of a sparse load, req/s by the minute; a count says mean and maximum."""
    rows = _rows("nasa_http_1995_first14days_1min.csv")
    return _flat([float(row["requests"]) / MINUTE_S for row in rows], MINUTE_S)


def servegen_windows() -> list[Interval | None]:
    """Return 14 days of a language model's load, req/s by windows of 10 minutes."""
    rows = _rows("servegen_m-large_rate_10min.csv")
    return _flat([float(row["total_rps"]) for row in rows], 10 * MINUTE_S)


def _flat(loads_rps: list[float], interval_s: float) -> list[Interval | None]:
    return [Interval(index * interval_s, rps, rps) for index, rps in enumerate(loads_rps)]


def _rows(name: str) -> Iterator[dict[str, str]]:
    path = DATA / name
    if not path.is_file():
        raise Skipped(f"{name} is not beside the repository")
    with path.open() as lines:
        yield from csv.DictReader(lines)

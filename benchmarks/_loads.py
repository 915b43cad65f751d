"""Real load traces, and what is left out of them."""

import csv
import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import data_file
from services.planner.core.forecast.load_forecast import Interval

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


def traces() -> Iterator[tuple[str, float, list[Interval | None]]]:
    """Yield every trace there is: its name, the length of its intervals, s, and its record."""
    yield "Twitter, 1 min", MINUTE_S, twitter_minutes()
    yield "Twitter, days 0-1, 10 s", 10.0, _cut(twitter_seconds(), 10)
    yield "NASA 1995, 1 min", MINUTE_S, nasa_minutes()
    yield "ServeGen m-large, 10 min", 10 * MINUTE_S, servegen_windows()
    rows = _rows("servegen_deepseek-r1_rate_10min.csv")
    deepseek = _flat([float(row["total_rps"]) for row in rows], 10 * MINUTE_S)
    yield "ServeGen deepseek-r1, 10 min", 10 * MINUTE_S, deepseek
    for client, loads_rps in _clients().items():
        yield f"ServeGen client {client}, 10 min", 10 * MINUTE_S, _flat(loads_rps, 10 * MINUTE_S)
    arrivals_s = {
        "Azure conversations 2023": [
            float(row["arrival_s"]) for row in _rows("azure_llm_2023_conv.csv")
        ],
        "Mooncake conversations": [
            json.loads(line)["timestamp"] / 1e3 for line in _lines("mooncake_conversation.jsonl")
        ],
    }
    for name, times_s in arrivals_s.items():
        counts = np.bincount(np.array(times_s, dtype=int)).astype(float)
        for interval_s in (10, MINUTE_S):
            yield f"{name}, {interval_s} s", float(interval_s), _cut(counts, interval_s)


def _clients() -> dict[str, list[float]]:
    """Return the eight biggest clients' loads by window of 10 minutes; windows left out are 0."""
    found: dict[str, list[float]] = {}
    for row in _rows("servegen_m-large_top8_clients.csv"):
        loads_rps = found.setdefault(row["client"], [0.0] * (14 * DAY_S // (10 * MINUTE_S)))
        loads_rps[int(float(row["t_s"])) // (10 * MINUTE_S)] = float(row["rps"])
    return found


def _cut(seconds: NDArray[np.float64], length_s: int) -> list[Interval | None]:
    """Return whole intervals of a record by the second; one without any request is a hole."""
    rows = seconds[: len(seconds) // length_s * length_s].reshape(-1, length_s)
    end = max(1, length_s // 6)
    return [
        Interval(index * float(length_s), row.mean(), row.max(), row[-end:].mean())
        if row.any()
        else None
        for index, row in enumerate(rows)
    ]


def _flat(loads_rps: list[float], interval_s: float) -> list[Interval | None]:
    return [Interval(index * interval_s, rps, rps) for index, rps in enumerate(loads_rps)]


def _rows(name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(_lines(name))


def _lines(name: str) -> Iterator[str]:
    with data_file(f"requests/{name}").open() as lines:
        yield from lines

"""Accuracy of the carbon forecast: rolling origin on the recorded intensities of real grids.

At equal distances through each record, the service's own forecaster sees what was known then, up to
112 days of it, and forecasts 48 hours. Baselines: the same hour of the last day and last week
(seasonal naive), its mean over the last seven days, and the present value (persistence). Where the
official forecast of Great Britain is recorded, the service gets it as a provider's, hour by hour,
and is judged against it; how long before the hour it was made, its record does not say.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import pyplot as plt

from benchmarks import _grids
from benchmarks._grids import Grid
from benchmarks.harness import Figures, Report, main
from cinquefoil.carbon.v1.records import ForecastPeriod
from services.carbon.core.forecast.bias_correction import ForecastRecord
from services.carbon.core.forecast.combination import combined
from services.carbon.core.forecast.forecaster import DEPTH, MAX_HORIZON, forecast
from services.carbon.core.model import Outlook, Sample
from services.carbon.sources.csv_trace import read_trace

HOURS = (1, 6, 24, 48)
ORIGINS, QUICK_ORIGINS = 200, 40
HISTORIES = (0.5, 1, 2, 3, 5, 7, 14, 28, 56, 112)
"""Days."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NAIVE = ("yesterday", "last_week")
BASELINES = (*NAIVE, "seven_day_mean", "persistence")
OFFICIAL = "official/UK-ESO_2021"


@dataclass(frozen=True, slots=True)
class Hit:
    """One forecast beside what came, gCO2e/kWh.

    Attributes:
        came: The value that came.
        forecast: The forecast's period.
        baselines: Forecasts of the baselines, by name.
    """

    came: float
    forecast: ForecastPeriod
    baselines: Mapping[str, float]

    @property
    def inside(self) -> bool:
        """Return whether it came within the bounds."""
        return self.forecast.low_gco2e_per_kwh <= self.came <= self.forecast.high_gco2e_per_kwh


def measure(origins: int = ORIGINS) -> Report:
    """Forecast every region from all origins, then all of them from less history."""
    names = _grids.names()
    with ProcessPoolExecutor() as pool:
        found = pool.map(partial(_region, origins=origins), names)
        histories = [pool.submit(_by_history, days, origins // 8) for days in HISTORIES]
        official = pool.submit(_official, origins)
        rows = [
            _row(name, hours, hits)
            for name, by_hours in zip(names, found, strict=True)
            for hours, hits in by_hours.items()
        ]
        corrected = [_row(OFFICIAL, hours, hits) for hours, hits in official.result().items()]
        by_history = [each.result() for each in histories]
    tables = [
        Figures(
            "From history alone: mean absolute error, gCO2e/kWh, rolling origin",
            rows,
            "ratio: to the better of yesterday and last week; inside: share of outcomes within the "
            "80 % interval, whose mean width is given",
        ),
        Figures(
            "With the official forecast, corrected by its record, against it as it is", corrected
        ),
        Figures("With less history, mean over the regions of lca/", by_history),
    ]
    return Report(tables, _document(rows, corrected), _draw)


def _document(rows: Sequence[Mapping[str, Any]], corrected: Sequence[Mapping[str, Any]]) -> Any:
    document: dict[str, dict[str, Any]] = {}
    for row in (*rows, *({**each, "region": f"{each['region']}+provider"} for each in corrected)):
        figures = {
            "mae": row["mae"],
            "naive_mae": min(row[name] for name in NAIVE),
            **{f"{name}_mae": row[name] for name in BASELINES},
            "inside_percent": row["inside_percent"],
        }
        if "official" in row:
            figures["official_mae"] = row["official"]
        document.setdefault(row["region"], {})[f"{row['hours']}h"] = figures
    return document


def _region(name: str, depth: timedelta = DEPTH, origins: int = ORIGINS) -> dict[int, list[Hit]]:
    """Return the hits by hours ahead."""
    grid = _grids.load(name)
    history = depth // grid.step
    hits: dict[int, list[Hit]] = {hours: [] for hours in HOURS}
    for origin in _origins(grid, origins):
        known = grid.samples[origin - history : origin + 1]
        found = forecast(known, known[-1].since)
        for hours, kept in hits.items():
            ahead = hours * HOUR // grid.step
            target = grid.samples[origin + ahead].intensity_gco2e_per_kwh
            kept.append(Hit(target, found.periods[ahead], _baselines(grid, origin, ahead)))
    return hits


def _origins(grid: Grid, origins: int) -> range:
    """Return instants after DEPTH; an odd number of hours apart visits every hour of the day."""
    first, last = DEPTH // grid.step, len(grid.samples) - MAX_HORIZON // grid.step
    hour = HOUR // grid.step
    return range(first, last, ((last - first) // origins // hour // 2 * 2 + 1) * hour)


def _baselines(grid: Grid, origin: int, ahead: int) -> dict[str, float]:
    day = DAY // grid.step

    def back(steps: int) -> float:
        whole = -(-ahead // steps) * steps
        return grid.samples[origin + ahead - whole].intensity_gco2e_per_kwh

    same_time = origin + ahead + -(-ahead // day) * -day
    week = range(same_time - 6 * day, same_time + 1, day)
    return {
        "yesterday": back(day),
        "last_week": back(7 * day),
        "seven_day_mean": fmean(grid.samples[at].intensity_gco2e_per_kwh for at in week),
        "persistence": grid.samples[origin].intensity_gco2e_per_kwh,
    }


def _official(origins: int) -> dict[int, list[Hit]]:
    """Return the hits where the official forecast is a provider's; what it left out is left out."""
    grid = _grids.load(OFFICIAL)
    came = read_trace(_grids.trace_file(OFFICIAL))
    issued = read_trace(_grids.trace_file(_grids.OFFICIAL_FORECAST))
    starts, seen = [sample.since for sample in issued], [sample.since for sample in came]
    truth, official = _by_instant(came), _by_instant(issued)
    record, chosen = ForecastRecord(), set(_origins(grid, origins))
    hits: dict[int, list[Hit]] = {hours: [] for hours in HOURS}
    for origin in range(len(grid.samples) - MAX_HORIZON // grid.step):
        now = grid.samples[origin].since
        ahead = issued[bisect_left(starts, now) : bisect_right(starts, now + MAX_HORIZON)]
        outlook = Outlook(ahead, grid.step, now)
        record.note(outlook, now)
        if origin not in chosen:
            continue
        known = grid.samples[origin - DEPTH // grid.step : origin + 1]
        correction = record.correction(came[: bisect_right(seen, now)], now)
        found = combined(forecast(known, now), outlook, "official", correction)
        for hours, kept in hits.items():
            then = now + hours * HOUR
            if then in truth and then in official:
                baselines = _baselines(grid, origin, hours) | {"official": official[then]}
                kept.append(Hit(truth[then], found.periods[hours], baselines))
    return hits


def _by_instant(samples: Sequence[Sample]) -> dict[datetime, float]:
    return {sample.since: sample.intensity_gco2e_per_kwh for sample in samples}


def _row(name: str, hours: int, hits: Sequence[Hit]) -> dict[str, Any]:
    mae = fmean(abs(hit.forecast.intensity_gco2e_per_kwh - hit.came) for hit in hits)
    baselines = {
        name: fmean(abs(hit.baselines[name] - hit.came) for hit in hits)
        for name in hits[0].baselines
    }
    widths = (hit.forecast.high_gco2e_per_kwh - hit.forecast.low_gco2e_per_kwh for hit in hits)
    return {
        "region": name,
        "hours": hours,
        "mae": mae,
        **baselines,
        "ratio": mae / min(baselines[naive] for naive in NAIVE),
        "inside_percent": 100 * fmean(hit.inside for hit in hits),
        "width": fmean(widths),
        "origins": len(hits),
    }


def _by_history(days: float, origins: int) -> dict[str, Any]:
    """Return the error over that of the better naive forecast, from so much history alone."""
    names = [name for name in _grids.names() if name.startswith("lca/")]
    found = [_region(name, timedelta(days=days), origins) for name in names]
    row: dict[str, Any] = {"history_days": days}
    for hours in HOURS:
        scored = [_row("", hours, hits[hours]) for hits in found]
        row[f"ratio_{hours}h"] = fmean(each["ratio"] for each in scored)
        row[f"inside_percent_{hours}h"] = fmean(each["inside_percent"] for each in scored)
    return row


def _draw(folder: Path) -> None:
    """Draw four days of forecasts beside what came."""
    plt.switch_backend("agg")
    names = [name for name in _grids.names() if name.startswith("lca/")][:6]
    figure, panels = plt.subplots(len(names), 1, figsize=(9, 2 * len(names)), layout="constrained")
    for panel, name in zip(panels, names, strict=True):
        grid = _grids.load(name)
        origin = DEPTH // grid.step + 60 * (DAY // grid.step)
        known = grid.samples[origin - DEPTH // grid.step : origin + 1]
        found = forecast(known, known[-1].since)
        shown = grid.samples[origin - 2 * DAY // grid.step : origin + 2 * DAY // grid.step]
        panel.plot([s.since for s in shown], [s.intensity_gco2e_per_kwh for s in shown], "k", lw=1)
        when = [period.since for period in found.periods]
        panel.plot(when, [period.intensity_gco2e_per_kwh for period in found.periods], "C0")
        low = [period.low_gco2e_per_kwh for period in found.periods]
        high = [period.high_gco2e_per_kwh for period in found.periods]
        panel.fill_between(when, low, high, color="C0", alpha=0.2)
        panel.set_ylabel(f"{name}\ngCO2e/kWh")
        panel.tick_params(labelsize=7)
    figure.savefig(folder / "forecast.png", dpi=120)


if __name__ == "__main__":
    main("forecast", measure, quick=partial(measure, QUICK_ORIGINS))

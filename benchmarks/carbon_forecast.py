"""How good is the carbon forecast? Rolling origin on the recorded intensities of real grids.

Some 500 times, at equal distances through each record, the service's own forecaster sees what was
known then, up to 112 days of it, and forecasts 48 hours. Rivals: the same hour of the last day and
of the last week (seasonal naive), and the present value (persistence). The official forecast of
Great Britain is shown where there is one; how long before the hour it was made, its record does
not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import pyplot as plt

from benchmarks import _grids
from benchmarks._grids import Grid
from benchmarks.harness import Figures, Report, main, timed_s
from services.carbon.domain import Period
from services.carbon.forecast import DEPTH, LONGEST, forecast
from services.carbon.sources.csv_file import read_trace

HOURS = (1, 6, 24, 48)
ORIGINS, FEW_ORIGINS = 500, 60
HISTORIES = tuple(timedelta(days=days) for days in (0.5, 2, 7, 14, 28, 56, 112))
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Hit:
    """One forecast beside what came, gCO2e/kWh.

    Attributes:
        when: The instant that was forecast.
        came: What came.
        forecast: Its period.
        rivals: What others said, by name.
    """

    when: datetime
    came: float
    forecast: Period
    rivals: Mapping[str, float]

    @property
    def inside(self) -> bool:
        """Whether it came within the bounds."""
        return self.forecast.low_gco2e_per_kwh <= self.came <= self.forecast.high_gco2e_per_kwh


def measure() -> Report:
    """Forecast every region from all origins, then all of them from less history."""
    regions = {name: _region(_grids.load(name)) for name in _grids.names()}
    rows = [_row(name, hours, hits, ms) for name, (found, ms) in regions.items()
            for hours, hits in found.items()]  # fmt: skip
    tables = [
        Figures(
            "Mean absolute error, gCO2e/kWh, rolling origin",
            rows,
            "gain: over the better of the two seasonal-naive forecasts; inside: share of outcomes "
            "within the 80 % interval, whose mean width is given; ms: one forecast of 48 h",
        ),
        Figures("The same with less history, mean over the regions", _by_history()),
    ]
    document: dict[str, dict[str, Any]] = {}
    for row in rows:
        document.setdefault(row["region"], {})[f"{row['hours']}h"] = {
            "mae": row["mae"],
            "naive_mae": min(row["yesterday"], row["last_week"]),
            **{key: row[key] for key in ("persistence", "inside_percent", "ms")},
        }
    return Report(tables, document, _draw)


def _region(
    grid: Grid, depth: timedelta = DEPTH, origins: int = ORIGINS
) -> tuple[dict[int, list[Hit]], float]:
    """Return the hits by hours ahead, and the time of a forecast in ms."""
    history, ahead, hour = depth // grid.step, LONGEST // grid.step, HOUR // grid.step
    first, last = DEPTH // grid.step, len(grid.samples) - ahead
    # An odd number of hours visits every hour of the day.
    stride = ((last - first) // origins // hour // 2 * 2 + 1) * hour
    official = _official(grid)
    hits: dict[int, list[Hit]] = {hours: [] for hours in HOURS}
    times_s = []
    for origin in range(first, last, stride):
        known = grid.samples[origin - history : origin + 1]
        found, took_s = timed_s(forecast, known, known[-1].since)
        times_s.append(took_s)
        for hours, kept in hits.items():
            index = hours * HOUR // grid.step
            kept.append(_hit(grid, origin, index, found.periods[index], official))
    return hits, 1e3 * fmean(times_s)


def _hit(
    grid: Grid, origin: int, ahead: int, period: Period, official: Mapping[datetime, float]
) -> Hit:
    day = DAY // grid.step
    target = grid.samples[origin + ahead]

    def back(steps: int) -> float:
        whole = -(-ahead // steps) * steps
        return grid.samples[origin + ahead - whole].intensity_gco2e_per_kwh

    rivals = {
        "yesterday": back(day),
        "last_week": back(7 * day),
        "persistence": grid.samples[origin].intensity_gco2e_per_kwh,
    }
    if target.since in official:
        rivals["official"] = official[target.since]
    return Hit(target.since, target.intensity_gco2e_per_kwh, period, rivals)


def _official(grid: Grid) -> dict[datetime, float]:
    path = _grids.DATA / f"{_grids.OFFICIAL_FORECAST}.csv"
    if not _grids.OFFICIAL_FORECAST.startswith(grid.name) or not path.is_file():
        return {}
    return {sample.since: sample.intensity_gco2e_per_kwh for sample in read_trace(path)}


def _row(name: str, hours: int, hits: Sequence[Hit], ms: float) -> dict[str, Any]:
    mae = fmean(abs(hit.forecast.intensity_gco2e_per_kwh - hit.came) for hit in hits)
    rivals = {
        rival: fmean(abs(hit.rivals[rival] - hit.came) for hit in hits)
        for rival in ("yesterday", "last_week", "persistence")
    }
    told = [abs(hit.rivals["official"] - hit.came) for hit in hits if "official" in hit.rivals]
    naive = min(rivals["yesterday"], rivals["last_week"])
    widths = (hit.forecast.high_gco2e_per_kwh - hit.forecast.low_gco2e_per_kwh for hit in hits)
    return {
        "region": name,
        "hours": hours,
        "mae": mae,
        **rivals,
        "official": fmean(told) if told else "",
        "gain_percent": 100 * (1 - mae / naive),
        "inside_percent": 100 * fmean(hit.inside for hit in hits),
        "width": fmean(widths),
        "origins": len(hits),
        "ms": ms,
    }


def _by_history() -> list[dict[str, Any]]:
    """Return the error over that of the better naive forecast, by length of history."""
    grids = [_grids.load(name) for name in _grids.names() if name.startswith("lca/")]
    rows = []
    for depth in HISTORIES:
        found = [_region(grid, depth, FEW_ORIGINS) for grid in grids]
        row: dict[str, Any] = {"history_days": depth / DAY}
        for hours in HOURS:
            scored = [_row("", hours, hits[hours], ms) for hits, ms in found]
            row[f"gain_percent_{hours}h"] = fmean(each["gain_percent"] for each in scored)
            row[f"inside_percent_{hours}h"] = fmean(each["inside_percent"] for each in scored)
        rows.append(row | {"ms": fmean(ms for _, ms in found)})
    return rows


def _draw(folder: Path) -> None:
    """Draw four days of forecasts beside what came."""
    plt.switch_backend("agg")
    names = [name for name in _grids.names() if name.startswith("lca/")][:6]
    figure, panels = plt.subplots(len(names), 1, figsize=(9, 2 * len(names)), layout="constrained")
    for panel, name in zip(panels, names, strict=True):
        grid = _grids.load(name)
        origin = DEPTH // grid.step + 60 * (DAY // grid.step)
        found = forecast(grid.samples[origin - DEPTH // grid.step : origin + 1],
                         grid.samples[origin].since)  # fmt: skip
        shown = grid.samples[origin - 2 * DAY // grid.step : origin + 2 * DAY // grid.step]
        panel.plot([s.since for s in shown], [s.intensity_gco2e_per_kwh for s in shown], "k", lw=1)
        when = [period.since for period in found.periods]
        panel.plot(when, [period.intensity_gco2e_per_kwh for period in found.periods], "C0")
        low = [period.low_gco2e_per_kwh for period in found.periods]
        high = [period.high_gco2e_per_kwh for period in found.periods]
        panel.fill_between(when, low, high, color="C0", alpha=0.2)
        panel.set_ylabel(f"{name}\ngCO2e/kWh")
        panel.tick_params(labelsize=7)
    figure.savefig(folder / "carbon_forecast.png", dpi=120)


if __name__ == "__main__":
    main("carbon_forecast", measure)

"""The paper's figures 9 to 12 and 14 to 16, drawn from our results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.clover import report
from benchmarks.clover.applications import TITLES
from benchmarks.clover.jobs import Results
from benchmarks.clover.searching import Searched
from benchmarks.clover.setting import HOURS, TRACES, Setting, intensities

mpl.use("Agg")

Row = Mapping[str, Any]
SHOWN = ("co2opt", "random", "annealing", "exact", "oracle")
WINDOW_H = 8


def draw(results: Results, folder: Path) -> None:
    """Write every figure into a folder that exists."""
    days = report.days(results)
    _effectiveness(days, folder / "clover_fig9.png")
    _trade_off(days, folder / "clover_fig10.png")
    _over_time(results, folder / "clover_fig11.png")
    _evaluations(results, folder / "clover_fig12.png")
    _weights(list(report.weights(results)), folder / "clover_fig14a.png")
    _thresholds(list(report.thresholds(results)), folder / "clover_fig14b.png")
    _fleets(list(report.fleets(results)), folder / "clover_fig15.png")
    _regions(days, folder / "clover_fig16.png")


def _effectiveness(days: report.Days, file: Path) -> None:
    """Fig. 9: accuracy, carbon and p95 of annealing against BASE at equal load."""
    headline = {TITLES[s.application]: rows for s, rows in days.items() if _is_headline(s)}
    bars = {
        "carbon": [100 - rows["annealing"]["carbon_saving_pct"] for rows in headline.values()],
        "accuracy": [100 - rows["annealing"]["accuracy_loss_pct"] for rows in headline.values()],
        "p95": [
            100 * rows["annealing"]["p95_ms"] / rows["base"]["p95_ms"] for rows in headline.values()
        ],
    }
    _bars(file, list(headline), bars, "% of BASE, equal load and GPUs")


def _trade_off(days: report.Days, file: Path) -> None:
    """Fig. 10: accuracy against carbon, by strategy."""
    chosen = {s: rows for s, rows in days.items() if _is_headline(s)}
    figure, axes = plt.subplots(1, len(chosen), figsize=(4 * len(chosen), 3.5), squeeze=False)
    for axis, (setting, rows) in zip(axes[0], chosen.items(), strict=True):
        for name in SHOWN:
            x, y = rows[name]["carbon_saving_pct"], -rows[name]["accuracy_loss_pct"]
            axis.scatter(x, y, label=name)
        axis.set(title=TITLES[setting.application], xlabel="carbon saved, %", ylabel="accuracy, %")
    axes[0][0].legend()
    _save(figure, file)


def _over_time(results: Results, file: Path) -> None:
    """Fig. 11: the objective over time."""
    figure, axis = plt.subplots(figsize=(7, 3.5))
    for job, found in results.items():
        shown = job.section == "day" and job.setting == Setting("efficientnet")
        if shown and job.strategy in SHOWN and not isinstance(found, Searched):
            axis.plot(job.hours, [hour.objective for hour in found], label=job.strategy)
    other = axis.twinx()
    other.plot(intensities("CISO March"), color="0.8", zorder=0)
    other.set_ylabel("gCO2e/kWh")
    axis.set(xlabel="hour", ylabel="objective, points", title="EfficientNet, CISO March")
    axis.legend()
    _save(figure, file)


def _evaluations(results: Results, file: Path) -> None:
    """Fig. 12: live evaluations per window, and how many keep the SLA."""
    chosen = {
        job.strategy: found.evaluations
        for job, found in results.items()
        if isinstance(found, Searched) and job.setting == Setting("efficientnet")
    }
    windows = range(0, HOURS, WINDOW_H)
    bars = {
        name: [sum(w <= each.hour < w + WINDOW_H for each in found) for w in windows]
        for name, found in chosen.items()
    }
    for name, found in chosen.items():
        bars[name].append(sum(each.broken for each in found))
    labels = [f"{w}-{w + WINDOW_H} h" for w in windows] + ["breaking SLA"]
    _bars(file, labels, bars, "live evaluations, EfficientNet")


def _weights(rows: Sequence[Row], file: Path) -> None:
    """Fig. 14 (a): lambda from 0.1 to 0.9."""
    figure, axis = plt.subplots(figsize=(5, 3.5))
    for name in TITLES.values():
        own = [r for r in rows if r["application"] == name and r["strategy"] == "exact"]
        if own:
            x = [row["carbon_saving_pct"] for row in own]
            axis.plot(x, [-row["accuracy_loss_pct"] for row in own], "o-", label=name)
    axis.set(xlabel="carbon saved, %", ylabel="accuracy, %", title="lambda 0.1 to 0.9, exact")
    axis.legend()
    _save(figure, file)


def _thresholds(rows: Sequence[Row], file: Path) -> None:
    """Fig. 14 (b): accuracy as a threshold."""
    losses = sorted({row["allowed_loss_pct"] for row in rows})
    names = list(dict.fromkeys(row["application"] for row in rows))
    bars = {
        name: [
            next(
                row["carbon_saving_pct"]
                for row in rows
                if (row["application"], row["strategy"]) == (name, "exact")
                and row["allowed_loss_pct"] == loss
            )
            for loss in losses
        ]
        for name in names
    }
    _bars(file, [f"{loss:g} %" for loss in losses], bars, "carbon saved, % (exact)")


def _fleets(rows: Sequence[Row], file: Path) -> None:
    """Fig. 15: p95 on 10, 4 and 2 GPUs; a bar that is missing means overload."""
    gpus = sorted({row["gpus"] for row in rows}, reverse=True)
    bars = {
        f"{name}, {strategy}": [
            next(
                (
                    row["p95_over_base"] or 0.0
                    for row in rows
                    if (row["application"], row["strategy"], row["gpus"]) == (name, strategy, n)
                ),
                0.0,
            )
            for n in gpus
        ]
        for name in dict.fromkeys(row["application"] for row in rows)
        for strategy in ("base", "exact")
    }
    _bars(file, [f"{n} GPUs" for n in gpus], bars, "p95 over BASE's on 10 GPUs")


def _regions(days: report.Days, file: Path) -> None:
    """Fig. 16: other regions and seasons."""
    bars: dict[str, list[float]] = {}
    for trace in TRACES:
        for setting, rows in days.items():
            if setting == Setting(setting.application, trace=trace):
                own = bars.setdefault(TITLES[setting.application], [])
                own.append(rows["annealing"]["carbon_saving_pct"])
    labels = list(TRACES)[: max(map(len, bars.values()), default=0)]
    _bars(file, labels, bars, "carbon saved, % (annealing, equal load)")


def _is_headline(setting: Setting) -> bool:
    return setting == Setting(setting.application)


def _bars(
    file: Path, labels: Sequence[str], bars: Mapping[str, Sequence[float]], title: str
) -> None:
    figure, axis = plt.subplots(figsize=(max(5.0, 1.2 * len(labels) + 2), 3.5))
    width = 0.8 / max(1, len(bars))
    for index, (name, values) in enumerate(bars.items()):
        axis.bar(np.arange(len(values)) + index * width, values, width, label=name)
    axis.set_xticks(np.arange(len(labels)) + 0.4 - width / 2, labels)
    axis.set_title(title)
    axis.legend(fontsize="small")
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)

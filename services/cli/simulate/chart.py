"""What a simulation did over time, as pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from services.cli.console.charts import PLAIN, legend_outside
from services.simulator.report.report import Report, Result
from services.simulator.report.series import Series

# Okabe and Ito: told apart with any colour vision. Grey comes first: a baseline usually does.
_COLOURS: Final = ("#7F7F7F", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_VARIANTS: Final = mpl.colormaps["viridis_r"]  # light for cheap, dark for accurate
_STYLE: Final[Any] = {**PLAIN, "axes.titlesize": 10, "axes.titlelocation": "left"}
_UNITS: Final = ((6 * 3600.0, 3600.0, "h"), (600.0, 60.0, "min"), (0.0, 1.0, "s"))


def draw(report: Report, folder: Path) -> dict[str, Path]:
    """Write the plots as PNG files; return them by title."""
    files = {
        "Over time": folder / "timeline.png",
        "What served, and when plans changed": folder / "plans.png",
    }
    with mpl.rc_context(_STYLE):
        for figure, path in zip((_timeline(report), _plans(report)), files.values(), strict=True):
            figure.savefig(path, dpi=120)
    return files


class _Axis:
    """Time since the start in a unit that keeps numbers short."""

    def __init__(self, report: Report) -> None:
        self.end_s = report.duration_s
        self.per_s, unit = next((p, u) for least, p, u in _UNITS if self.end_s >= least)
        self.label = f"time since {report.start:%Y-%m-%d %H:%M} UTC ({unit})"

    def edges(self, bin_s: float, values: Sequence[Any]) -> Any:
        return np.arange(len(values) + 1) * bin_s / self.per_s

    def finish(self, axis: Any) -> None:
        axis.set_xlim(0, self.end_s / self.per_s)
        axis.set_xlabel(self.label)
        if self.per_s == 3600.0 and self.end_s <= 96 * 3600:
            axis.set_xticks(np.arange(0, self.end_s / 3600 + 0.1, 6))


def _timeline(report: Report) -> Figure:
    models = list(report.variants)
    count = 3 + 2 * len(models)
    figure = Figure(figsize=(10, 1.9 * count + 0.6), layout="constrained")
    axes = figure.subplots(count, 1, sharex=True)
    time = _Axis(report)
    grid = next(iter(report.results.values())).series
    intensities = grid.intensity_gco2e_per_kwh
    _per_name(axes[0], time, grid, intensities, "Carbon intensity of the grid")
    axes[0].set_ylabel("gCO$_2$e/kWh")
    _per_name(axes[1], time, grid, grid.load_rps, "Load")
    axes[1].set_ylabel("req/s")
    _carbon(axes[2], time, report.results)
    for number, model in enumerate(models):
        title = f"{model}: " if len(models) > 1 else ""
        _accuracy(axes[3 + 2 * number], time, report.results, model, title)
        _latency(axes[4 + 2 * number], time, report.results, model, title)
    time.finish(axes[-1])
    handles, labels = axes[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.align_ylabels()
    return figure


def _per_name(axis: Any, time: _Axis, series: Series, found: Mapping[str, Any], title: str) -> None:
    """Draw a line per zone or model."""
    for number, (name, values) in enumerate(found.items()):
        colour = "black" if number == 0 else _COLOURS[number]
        _line(axis, time, series, values, color=colour, label=name)
    axis.set_ylim(bottom=0)
    names = list(found)
    axis.set_title(f"{title}: {names[0]}" if len(names) == 1 else title)
    if len(names) > 1:
        axis.legend(frameon=False, loc="upper right", ncols=len(names))


def _carbon(axis: Any, time: _Axis, results: Mapping[str, Result]) -> None:
    for colour, (name, result) in zip(_cycle(results), results.items(), strict=True):
        series = result.series
        _line(axis, time, series, series.carbon_gco2e_per_h, color=colour, label=name)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("gCO$_2$e/h")
    axis.set_title("Emissions of all GPUs, PUE included")


def _accuracy(
    axis: Any, time: _Axis, results: Mapping[str, Result], model: str, title: str
) -> None:
    for colour, result in zip(_cycle(results), results.values(), strict=True):
        _line(axis, time, result.series, _holes(result.series.accuracy[model]), color=colour)
    axis.set_ylabel("accuracy")
    axis.set_title(f"{title}Stated accuracy of the answers")


def _latency(axis: Any, time: _Axis, results: Mapping[str, Result], model: str, title: str) -> None:
    for colour, result in zip(_cycle(results), results.values(), strict=True):
        latency_ms = _holes(result.series.latency_s[model]) * 1e3
        _line(axis, time, result.series, latency_ms, color=colour)
    slo = next(iter(results.values())).figures.models[model]
    axis.axhline(slo.slo_latency_s * 1e3, color="black", lw=1, ls="--")
    axis.annotate(
        "objective",
        (0.005, slo.slo_latency_s * 1e3),
        xycoords=("axes fraction", "data"),
        xytext=(0, -3),
        textcoords="offset points",
        va="top",
        fontsize=8,
    )
    axis.set_ylim(bottom=0)
    axis.set_ylabel("ms")
    axis.set_title(f"{title}Latency, p{slo.slo_percentile:g}")


def _plans(report: Report) -> Figure:
    models = list(report.variants)
    panels = [(name, model) for name in report.results for model in models]
    figure = Figure(figsize=(10, 1.7 * len(panels) + 0.9), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    time = _Axis(report)
    for axis, (name, model) in zip(axes, panels, strict=True):
        result = report.results[name]
        _shares(axis, time, result, report.variants[model], model)
        many = f" ({model})" if len(models) > 1 else ""
        changes = result.figures.reconfigurations
        axis.set_title(f"{name}{many}: {changes} reconfigurations", pad=12)
    time.finish(axes[-1])
    figure.align_ylabels()
    return figure


def _shares(axis: Any, time: _Axis, result: Result, variants: Sequence[str], model: str) -> None:
    series = result.series
    shares = series.shares[model]
    below = np.zeros(len(series.power_w))
    for rank, variant in zip(np.linspace(0.05, 0.95, len(variants)), variants, strict=True):
        if variant not in shares:
            continue
        top = below + np.array(shares[variant]) * 100
        axis.stairs(
            top,
            time.edges(series.bin_s, top),
            baseline=below,
            fill=True,
            color=_VARIANTS(rank),
            label=variant,
        )
        below = top
    for plan in result.plans[1:]:
        if plan.steps:
            axis.plot(plan.decided_s / time.per_s, 105, "v", color="black", ms=4, clip_on=False)
    axis.set_ylim(0, 100)
    axis.set_ylabel("answers (%)")
    legend_outside(axis, reverse=True)


def _line(axis: Any, time: _Axis, series: Series, values: Any, **style: Any) -> None:
    """Draw one value per bin, without a way down to zero at the ends."""
    axis.stairs(values, time.edges(series.bin_s, values), baseline=None, lw=1.5, **style)


def _cycle(results: Mapping[str, Result]) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(len(results))]


def _holes(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

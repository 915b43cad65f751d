"""The paper's figures 5, 7 and 8 with our numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray

from benchmarks._loads import DAY_S
from benchmarks.infadapter.policies import Outlook
from benchmarks.infadapter.replay import STEP_S, Course
from benchmarks.infadapter.setting import Setting

WINDOW_S = 1200
"""The paper shows samples of 20 minutes."""

SPIKE_S = 600
"""Where the spike lies in the bursty sample."""


def bursty(load_rps: NDArray[np.float64]) -> int:
    """Return the second from which a sample has a steady load, then the steepest spike."""
    minutes = _minutes(load_rps)
    before, after = minutes[10:-10], minutes[11:-9]
    steepest = int(np.argmax(after - before)) + 11
    return steepest * 60 - SPIKE_S


def steady(load_rps: NDArray[np.float64]) -> int:
    """Return the second at which the calmest sample of the second day begins."""
    minutes = _minutes(load_rps)[DAY_S // 60 :]
    width = WINDOW_S // 60
    windows = np.lib.stride_tricks.sliding_window_view(minutes, width)
    spread = np.where(windows.min(axis=1) > 0, np.ptp(windows, axis=1), np.inf)
    return DAY_S + int(np.argmin(spread)) * 60


@dataclass(frozen=True, slots=True)
class Replay:
    """Data of a plot.

    Attributes:
        setting: The networks.
        load_rps: By second.
        known: Forecasts, by second.
        courses: By policy.
    """

    setting: Setting
    load_rps: NDArray[np.float64]
    known: Mapping[int, Outlook]
    courses: Mapping[str, Course]


def sample(path: Path, title: str, start: int, replay: Replay) -> None:
    """Draw load and forecast, accuracy loss, cores and p99 over 20 minutes (Fig. 5 and 8)."""
    mpl.use("Agg")
    figure, axes = plt.subplots(4, 1, sharex=True, figsize=(9, 10), layout="constrained")
    axes[0].plot(replay.load_rps[start : start + WINDOW_S], color="0.7", lw=0.8, label="load")
    when = [second for second in replay.known if start <= second < start + WINDOW_S]
    bounds = [replay.known[second].bound_rps for second in when]
    axes[0].step(np.array(when) - start, bounds, where="post", color="k", label="our bound")
    widths = [3.0, *[1.2] * len(replay.courses)]  # the first shows beneath one that is like it
    for (name, course), width in zip(replay.courses.items(), widths, strict=False):
        inside = (course.second >= start) & (course.second < start + WINDOW_S)
        drawn = (
            100 * (replay.setting.best_accuracy - course.accuracy[inside]),
            course.cores[inside],
            1e3 * course.p99_s[inside],
        )
        for axis, values in zip(axes[1:], drawn, strict=True):
            axis.step(course.second[inside] - start, values, where="post", label=name, lw=width)
    axes[3].axhline(1e3 * replay.setting.slo_s, color="k", ls=":", lw=1)
    axes[3].set_yscale("log")
    labels = ("req/s", "accuracy loss, points", "cores", "p99, ms (fluid model)")
    for axis, label in zip(axes, labels, strict=True):
        axis.set_ylabel(label)
    axes[0].set_title(title)
    axes[0].legend(loc="upper left", fontsize=8)
    handles = axes[1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(replay.courses))
    axes[3].set_xlabel(f"s, a decision every {STEP_S} s")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def bars(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw accuracy loss, cores and p99 of every policy and weight (Fig. 7)."""
    mpl.use("Agg")
    names = list(dict.fromkeys(row["policy"] for row in rows))
    weights = list(dict.fromkeys(row["alpha"] for row in rows))
    columns = ("accuracy_loss_points", "cores", "p99_s")
    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(12, 5), layout="constrained")
    height = 0.8 / len(weights)
    for axis, column in zip(axes, columns, strict=True):
        for index, weight in enumerate(weights):
            values = {row["policy"]: row[column] for row in rows if row["alpha"] == weight}
            places = np.arange(len(names)) + index * height
            axis.barh(places, [values[name] for name in names], height, label=f"alpha {weight:g}")
        axis.set_xlabel(column.replace("_", " "))
    axes[2].set_xscale("log")
    axes[0].set_yticks(np.arange(len(names)) + 0.4 - height / 2, names)
    axes[0].invert_yaxis()
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(weights)
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _minutes(load_rps: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = load_rps.reshape(-1, 60).mean(axis=1)
    return means

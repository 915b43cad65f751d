"""The day as a picture: intensity, what served, power and emissions."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib import dates as untyped_dates
from matplotlib.figure import Figure
from numpy.typing import NDArray

from services.cli.console.charts import legend_outside
from services.cli.demo.sample import Sample
from services.kit.units import S_PER_H

# Variants are ordered, so their colours are: viridis, light for cheap, dark for accurate. It and
# the pair below (Okabe and Ito) are told apart with any colour vision.
_MAP: Final = mpl.colormaps["viridis_r"]
_COLOURS: Final = {"base": "#7F7F7F", "cinquefoil": "#0072B2"}
_NAMES: Final = {"base": "BASE", "cinquefoil": "Cinquefoil"}
_SMOOTH: Final = 8

dates: Any = untyped_dates

Change = tuple[datetime, float]
Account = Callable[[Sample], float]

_energy: Account = attrgetter("energy_j")
_carbon: Account = attrgetter("carbon_gco2e")


def draw(
    path: Path,
    changes: Sequence[Change],
    samples: Mapping[str, Sequence[Sample]],
    variants: Sequence[str],
) -> None:
    """Write a PNG of one day.

    Args:
        path: The file.
        changes: (grid time, gCO2e/kWh), oldest first.
        samples: By suite, "base" and "cinquefoil", oldest first, at least two of each.
        variants: Names in the order in which they are stacked, the cheapest first.
    """
    figure = Figure(figsize=(10, 10), dpi=120, layout="constrained")
    axes = figure.subplots(4, 1, sharex=True, height_ratios=(2, 3, 2, 2))
    with mpl.rc_context({"font.size": 10}):
        _intensity(axes[0], changes, samples["cinquefoil"])
        _shares(axes[1], samples["cinquefoil"], variants)
        _rates(axes[2], samples, _energy, 1.0, "GPU power (W)")
        _rates(axes[3], samples, _carbon, S_PER_H, "emissions (gCO$_2$e/h)")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[3].xaxis.set_major_locator(dates.HourLocator(byhour=range(0, 24, 3)))
    axes[3].xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes[3].set_xlabel("grid time (UTC)")
    series = samples["cinquefoil"]
    axes[3].set_xlim(series[0].at, series[-1].at)
    figure.align_ylabels()
    figure.suptitle("A day of the grid: what Cinquefoil did, and what it cost", fontsize=13)
    figure.savefig(path)


def rates(
    samples: Sequence[Sample], account: Account, per: float
) -> tuple[list[datetime], NDArray[np.float64]]:
    """Return the slope of an account over time, smoothed over a few samples.

    Args:
        samples: Oldest first.
        account: What only grows: energy, J, or carbon, gCO2e.
        per: Seconds to express it per.

    Returns:
        Grid times at the middle of each window, and the account's growth per `per` seconds.
    """
    # Agents report at their own pace: a reading that brought nothing new is no measurement.
    told = [later for earlier, later in pairwise(samples) if account(later) != account(earlier)]
    step = min(_SMOOTH, len(told) - 1)
    if step < 1:
        return [], np.zeros(0)
    values = np.array([account(reading) for reading in told], dtype=np.float64)
    seconds = np.array([reading.seconds for reading in told])
    slope = (values[step:] - values[:-step]) / np.maximum(seconds[step:] - seconds[:-step], 1e-9)
    middle = [
        first.at + (last.at - first.at) / 2 for first, last in zip(told, told[step:], strict=False)
    ]
    return middle, slope * per


def _intensity(axis: Any, changes: Sequence[Change], day: Sequence[Sample]) -> None:
    times = [*(since for since, _ in changes), day[-1].at]
    values = [value for _, value in changes] + [changes[-1][1]]
    axis.step(times, values, where="post", color="black", linewidth=1.5)
    axis.fill_between(times, values, step="post", color="black", alpha=0.08)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("grid (gCO$_2$e/kWh)")


def _shares(axis: Any, day: Sequence[Sample], variants: Sequence[str]) -> None:
    times = [reading.at for reading in day]
    stack = [[reading.shares.get(name, 0.0) * 100 for reading in day] for name in variants]
    colours = [_MAP(0.05 + 0.9 * rank) for rank in np.linspace(0, 1, len(variants))]
    axis.stackplot(times, stack, labels=variants, colors=colours, step="post", linewidth=0)
    for earlier, later in pairwise(day):
        if later.plan != earlier.plan:
            axis.axvline(later.at, color="white", linewidth=0.8)
    axis.set_ylim(0, 100)
    axis.set_ylabel("Cinquefoil's load\nby variant (%)")
    legend_outside(axis, reverse=True)


def _rates(
    axis: Any, suites: Mapping[str, Sequence[Sample]], account: Account, per: float, label: str
) -> None:
    for name, day in suites.items():
        times, values = rates(day, account, per)
        axis.plot(times, values, color=_COLOURS[name], label=_NAMES[name], linewidth=2)
    axis.set_ylim(bottom=0)
    axis.set_ylabel(label)
    legend_outside(axis)

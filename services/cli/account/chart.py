"""Carbon over time, by whom, beside what BASE would have emitted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib import dates as untyped_dates
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cinquefoil.planner.v1.planner_pb2 import AccountEntry
from services.cli.account.report import rows
from services.cli.console.charts import PLAIN
from services.cli.console.quantities import carbon, percent

# Okabe and Ito: told apart with any colour vision. Grey is what nobody used.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_GREY: Final = "#BDBDBD"
_BASE: Final = "#333333"
_OTHERS: Final = "others"
_NOBODYS: Final = "idle, unattributed"
_MOST_BARS: Final = 24 * 14
_MOST_PAIRS: Final = 72
_STYLE: Final[Any] = {**PLAIN, "legend.frameon": False}

dates: Any = untyped_dates


@dataclass(frozen=True, slots=True)
class Bars:
    """What is drawn.

    Attributes:
        starts: When each bar begins, UTC; no gaps.
        width_h: Length of each, hours.
        parts_gco2e: By name, from the bottom up, shape (bars,).
        base_gco2e: What BASE would have emitted, shape (bars,).
    """

    starts: Sequence[datetime]
    width_h: int
    parts_gco2e: dict[str, NDArray[np.float64]]
    base_gco2e: NDArray[np.float64]

    @property
    def ends(self) -> list[datetime]:
        """When each bar begins, and when the last one ends."""
        return [*self.starts, self.starts[-1] + timedelta(hours=self.width_h)]


def bars(entries: Iterable[AccountEntry], by: str) -> Bars:
    """Return hours, or days where there are too many, with what each model or place emitted.

    Args:
        entries: In order of hour.
        by: "model", "node" or "zone".
    """
    entries = list(entries)
    hours = [entry.hour.ToDatetime() for entry in entries]
    first, last = min(hours), max(hours)
    width_h = 1 if (last - first) <= timedelta(hours=_MOST_BARS) else 24
    first = first if width_h == 1 else first.replace(hour=0)
    count = int((last - first) / timedelta(hours=width_h)) + 1
    found: dict[str, NDArray[np.float64]] = {}
    base_gco2e = np.zeros(count)
    for entry, hour in zip(entries, hours, strict=True):
        bar = int((hour - first) / timedelta(hours=width_h))
        name = getattr(entry, by) or _NOBODYS
        found.setdefault(name, np.zeros(count))[bar] += entry.carbon_gco2e
        base_gco2e[bar] += entry.base_carbon_gco2e
    starts = [first + timedelta(hours=width_h * bar) for bar in range(count)]
    return Bars(starts, width_h, _stacked(found), base_gco2e)


def draw(entries: Iterable[AccountEntry], by: str, path: Path) -> None:
    """Write a PNG: emissions per hour or day as stacked bars beside BASE's, and both added up."""
    entries = list(entries)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 6.5), dpi=130, layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        if entries:
            found = bars(entries, by)
            _bars(upper, found)
            _sums(lower, found, rows(entries, by)[-1].saved_error_gco2e)
            _time(lower)
        else:
            upper.text(0.5, 0.5, "nothing was drawn", ha="center", transform=upper.transAxes)
        figure.suptitle(f"Operational carbon by {by}, beside BASE at equal load", fontsize=12)
        figure.savefig(path)


def _stacked(found: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Return what no model used at the bottom, then the largest, then the others together."""
    nobodys = found.pop(_NOBODYS, None)
    names = sorted(found, key=lambda name: -float(found[name].sum()))
    shown, rest = names[: len(_COLOURS)], names[len(_COLOURS) :]
    if rest:
        shown, rest = shown[:-1], [shown[-1], *rest]
    parts = {} if nobodys is None else {_NOBODYS: nobodys}
    parts |= {name: found[name] for name in shown}
    if rest:
        parts[_OTHERS] = np.sum([found[name] for name in rest], axis=0)
    return parts


def _bars(axis: Any, found: Bars) -> None:
    """Draw a stack per bar with BASE's whole beside it; where bars are many, BASE's as a line."""
    edges = dates.date2num(found.ends)
    bottom = np.zeros(len(found.starts))
    colours = iter(_COLOURS)
    few = len(found.starts) <= _MOST_PAIRS
    for name, values in found.parts_gco2e.items():
        colour = _GREY if name == _NOBODYS else next(colours)
        top = bottom + values
        if few:
            _beside(axis, edges, 0.1, values, bottom=bottom, color=colour, label=name)
        else:
            axis.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=name)
        bottom = top
    if few:
        look = {"color": "white", "edgecolor": _BASE, "hatch": "//////", "linewidth": 0.7}
        _beside(axis, edges, 0.5, found.base_gco2e, **look, label="BASE")
    else:
        axis.stairs(found.base_gco2e, edges, color=_BASE, linewidth=1.2, label="BASE")
    axis.set_ylabel(f"gCO$_2$e per {'hour' if found.width_h == 1 else 'day'}")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)


def _beside(
    axis: Any, edges: NDArray[np.float64], at: float, values: NDArray[np.float64], **look: Any
) -> None:
    """Draw bars of 0.4 of the width each, from `at` of the width on."""
    width_d = np.diff(edges)
    axis.bar(edges[:-1] + at * width_d, values, 0.4 * width_d, align="edge", **look)


def _sums(axis: Any, found: Bars, error_gco2e: float) -> None:
    """Draw both since the beginning, with what was saved between them."""
    spent = np.concatenate(([0.0], np.cumsum(np.sum(list(found.parts_gco2e.values()), axis=0))))
    base = np.concatenate(([0.0], np.cumsum(found.base_gco2e)))
    saved = base[-1] - spent[-1]
    error = f" \u00b1 {percent(error_gco2e / base[-1])}" if base[-1] > 0 else ""
    ratio = f" ({percent(saved / base[-1])}{error})" if base[-1] > 0 else ""
    axis.plot(found.ends, base, color=_BASE, linestyle="--", linewidth=1.2, label="BASE")
    axis.plot(found.ends, spent, color=_COLOURS[0], linewidth=1.6, label="emitted")
    label = f"saved: {carbon(saved)}{ratio}"
    axis.fill_between(
        found.ends, spent, base, color="#009E73", alpha=0.25, linewidth=0, label=label
    )
    axis.set_ylabel("gCO$_2$e in sum")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _time(axis: Any) -> None:
    locator = dates.AutoDateLocator(minticks=4, maxticks=12)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axis.set_xlabel("UTC")
    axis.margins(x=0.01)

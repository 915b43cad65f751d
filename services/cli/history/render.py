"""The past as a table with a line of blocks per series, and what happened last."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.console.output import table
from services.cli.console.quantities import carbon, percent
from services.cli.history.document import Series

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_CELLS: Final = 30
"""Width of a curve: with names and figures it fits 80 columns."""
_NAME: Final = 20
_NOW: Final = 2
"""Newest points of which one is the present: the last has just begun."""


class Curve(NamedTuple):
    """A series to show.

    Attributes:
        name: Its name, with the unit.
        field: Its name in CSV.
        values: One for each time; None: nothing is known.
        limit: A limit to compare with, if there is one.
    """

    name: str
    field: str
    values: Series
    limit: float | None = None


def curves(document: Mapping[str, Any]) -> Iterator[Curve]:
    """Yield the series of a history, in the order in which they are shown."""
    for zone in document["zones"]:
        name = zone["zone"]
        field = f"intensity_gco2e_per_kwh[{name}]"
        yield Curve(f"{name} g/kWh", field, zone["intensity_gco2e_per_kwh"])
    power, emissions = document["power"], document["emissions"]
    yield Curve("power W", "measured_w", power["measured_w"])
    yield Curve("BASE W", "base_w", power["base_w"])
    yield Curve("gCO2e/h", "measured_gco2e_per_h", emissions["measured_gco2e_per_h"])
    yield Curve("BASE gCO2e/h", "base_gco2e_per_h", emissions["base_gco2e_per_h"])
    for model in document["models"]:
        name, objective_s = model["model"], model["objective_s"]
        yield Curve(f"{name} req/s", f"requests_rps[{name}]", model["requests_rps"])
        latency = f"{name} p{model['percentile'] or 95:.3g} ms"
        in_ms = [None if value is None else 1e3 * value for value in model["latency_s"]]
        limit_ms = None if objective_s is None else 1e3 * objective_s
        yield Curve(latency, f"latency_ms[{name}]", in_ms, limit_ms)
        within = [None if value is None else 100 * value for value in model["within"]]
        yield Curve(f"{name} within %", f"within_percent[{name}]", within)
        yield Curve(f"{name} accuracy", f"accuracy[{name}]", model["accuracy"])
    for gpu in document["gpus"]:
        yield Curve(f"{gpu['name']} W", f"power_w[{gpu['name']}]", gpu["power_w"])


def render(document: Mapping[str, Any], hours: int) -> RenderableType:
    """Return a history as a table, and a sentence of what happened last."""
    begin, end = (_clock(document[name], hours) for name in ("since_s", "until_s"))
    shown = table("", "series", f"{begin} to {end} UTC", ">lowest", ">highest", ">now")
    for column in shown.columns:
        column.no_wrap = True
    known = [curve for curve in curves(document) if any(each is not None for each in curve.values)]
    for name, _, values, limit in known:
        figures = [each for each in values if each is not None]
        above = limit is not None and max(figures) > limit
        shown.add_row(
            Text(name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"),
            sparkline(values),
            _short(min(figures)),
            Text(_short(max(figures)), style="red" if above else ""),
            _short(next((each for each in reversed(values[-_NOW:]) if each is not None), None)),
        )
    lines: list[RenderableType] = [shown] if known else [Text(_nothing(hours))]
    return Group(*lines, Text(_last(document)), Text(_saved(document["saved"])))


def sparkline(values: Series, cells: int = _CELLS) -> str:
    """Return a line of blocks from the lowest value to the highest; blank: nothing is known.

    Args:
        values: One for each time.
        cells: Most blocks: of values that share one, the mean is shown.
    """
    count = min(cells, len(values))
    ends = [len(values) * n // count for n in range(count + 1)] if count else []
    groups = [
        [each for each in values[begin:end] if each is not None] for begin, end in pairwise(ends)
    ]
    means = [fmean(group) if group else None for group in groups]
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(" " if mean is None else _block(mean, low, high) for mean in means)


def _block(value: float, low: float, high: float) -> str:
    """Return the block of a value; one that never changes is half as high as the line."""
    if high <= low:
        return _BLOCKS[len(_BLOCKS) // 2 - 1]
    return _BLOCKS[min(int((value - low) / (high - low) * len(_BLOCKS)), len(_BLOCKS) - 1)]


def rows(document: Mapping[str, Any]) -> Iterator[Sequence[str | float | None]]:
    """Yield a heading, then a row for each time, as CSV has them."""
    shown = list(curves(document))
    yield ["time", *(curve.field for curve in shown)]
    for n, at_s in enumerate(document["times_s"]):
        at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
        yield [at, *(curve.values[n] for curve in shown)]


def _clock(at_s: float, hours: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):{'%H:%M' if hours < 24 else '%m-%d %H:%M'}}"


def _short(value: float | None) -> str:
    """Return a figure in at most six characters."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _nothing(hours: int) -> str:
    return (
        f"Nothing is recorded in the last {hours} h. The planner records while it runs: "
        "start it with `cinquefoil up`."
    )


def _last(document: Mapping[str, Any]) -> str:
    plans = document["plans"]
    if not plans:
        return "No plan has come to run: `cinquefoil status` says what is missing."
    at = datetime.fromtimestamp(plans[-1]["since_s"], UTC)
    today = at.date() == datetime.fromtimestamp(document["until_s"], UTC).date()
    return f"{plans[-1]['sentence']}{'' if today else f' That was on {at:%Y-%m-%d}.'}"


def _saved(saved: Mapping[str, float | None]) -> str:
    share, low, high = saved["share"], saved["low_gco2e"], saved["high_gco2e"]
    if share is None or low is None or high is None:
        return "No request was answered today (UTC), so nothing is saved yet."
    today = saved["today_gco2e"] or 0.0
    word = "Saved" if today >= 0 else "Spent more than BASE"
    return (
        f"{word} today (UTC): {carbon(abs(today))}, {percent(abs(share))} of BASE's "
        f"(between {carbon(low)} and {carbon(high)})."
    )

"""The day as one moving SVG: the grid, what runs on each GPU, and the power that was saved."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.cli.demo import report
from services.cli.demo.page import Change, periods, rates
from services.cli.demo.sample import Sample
from services.console.palette import UNKNOWN, shades
from services.kit.config import Model

_WIDTH, _LEFT, _RIGHT = 860, 92, 16
_GRID_TOP, _GRID_HEIGHT = 56, 84
_GPU_TOP, _ROW, _GPU_GAP = 176, 9, 16
_POWER_HEIGHT, _FOOT = 96, 60
_PASSES_S: Final = 14.0
_HOURS: Final = 6

_STYLE: Final = """
svg { background: var(--page); --page: #fff; --text: #1b1f1d; --quiet: #5b635f; --line: #d8dcd8;
  --grid: #6b7280; --base: #9a3412; --saved: #2f8f5b55; --used: #1f7a46; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --text: #e8ece9; --quiet: #a3ada7;
  --line: #30363d; --grid: #9aa4b2; --base: #ffa275; --saved: #6fd39b44; --used: #6fd39b; } }
text { font: 13px system-ui, sans-serif; fill: var(--quiet); }
.title { font-size: 18px; font-weight: 600; fill: var(--text); }
.row { fill: none; stroke: var(--line); }
.cover { fill: var(--page); animation: pass %(seconds)gs linear infinite; }
.edge { fill: var(--text); animation: edge %(seconds)gs linear infinite; }
@keyframes pass { 0%% { transform: translateX(0); }
  80%%, 100%% { transform: translateX(%(width)gpx); } }
@keyframes edge { 0%% { transform: translateX(0); }
  80%% { transform: translateX(%(width)gpx); opacity: 1; }
  81%%, 100%% { transform: translateX(%(width)gpx); opacity: 0; } }
@media (prefers-reduced-motion: reduce) { .cover, .edge { display: none; } }
"""


def write(
    path: Path,
    figures: Mapping[str, report.Figures],
    changes: Sequence[Change],
    samples: Mapping[str, Sequence[Sample]],
    models: Mapping[str, Model],
) -> None:
    """Write one day as one SVG that plays by itself, and stands still where motion is unwanted.

    Args:
        path: The file.
        figures: Figures by suite, "base" and "cinquefoil".
        changes: (grid time, gCO2e/kWh), oldest first.
        samples: By suite, oldest first, at least two of each.
        models: The models, for the shades of their variants.
    """
    day = samples["cinquefoil"]
    scale = _Axis(day[0].at, day[-1].at)
    power_top = _GPU_TOP + sum(gpu.cells * _ROW + _GPU_GAP for gpu in day[0].gpus) + 24
    height = power_top + _POWER_HEIGHT + _FOOT
    saved = report.saving(
        figures["cinquefoil"].carbon_gco2e_per_request, figures["base"].carbon_gco2e_per_request
    )
    title = f"{saved:.0%} less carbon for the same requests"
    inner = _WIDTH - _LEFT - _RIGHT
    said = escape(_in_words(title, day, changes))
    shown = f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{said}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shown}>',
        f"<style>{_STYLE % {'seconds': _PASSES_S, 'width': inner}}</style>",
        _rect((0, 0, _WIDTH, height), 'fill="var(--page)"'),
        _text(_LEFT, 28, title, "title"),
        *_grid(changes, scale),
        *_gpus(day, models, scale),
        *_power(samples, scale, power_top),
        _rect((_LEFT, 36, inner + 2, power_top + _POWER_HEIGHT - 34), 'class="cover"'),
        _rect((_LEFT, 40, 0.5, power_top + _POWER_HEIGHT - 40), 'class="edge"'),
        *_hours(scale, power_top + _POWER_HEIGHT + 18),
        *_key(day, models, power_top + _POWER_HEIGHT + 44),
        "</svg>\n",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


class _Axis:
    """Pixels of times."""

    def __init__(self, first: datetime, last: datetime) -> None:
        self.first, self.last = first, last

    def __call__(self, at: datetime) -> float:
        share = (at - self.first) / (self.last - self.first)
        return round(_LEFT + min(max(share, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT), 1)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _rect(box: tuple[float, float, float, float], look: str, name: str = "") -> str:
    x, y, width, height = box
    title = f"<title>{escape(name)}</title>" if name else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}>{title}</rect>'


def _lines(points: Sequence[tuple[float, float]], colour: str, dash: str = "none") -> str:
    look = f'fill="none" stroke="var(--{colour})" stroke-width="2" stroke-dasharray="{dash}"'
    return f'<polyline points="{_points(points)}" {look}/>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:.1f}" for x, y in points)


def _grid(changes: Sequence[Change], scale: _Axis) -> Iterator[str]:
    bottom = _GRID_TOP + _GRID_HEIGHT
    most = max(value for _, value in changes) * 1.05
    stairs: list[tuple[float, float]] = []
    for (since, value), (until, _) in pairwise([*changes, (scale.last, 0.0)]):
        y = bottom - value / most * _GRID_HEIGHT
        stairs += [(scale(since), y), (scale(until), y)]
    area = [(stairs[0][0], bottom), *stairs, (stairs[-1][0], bottom)]
    yield _text(_LEFT - 8, _GRID_TOP + 12, "grid", anchor="end")
    yield _text(_LEFT - 8, _GRID_TOP + 28, "gCO₂e/kWh", anchor="end")
    yield _text(_LEFT - 8, _GRID_TOP + 44, f"up to {most / 1.05:.0f}", anchor="end")
    yield f'<polygon points="{_points(area)}" fill="var(--grid)" fill-opacity=".25"/>'
    yield _lines(stairs, "grid")


def _gpus(day: Sequence[Sample], models: Mapping[str, Model], scale: _Axis) -> Iterator[str]:
    """Yield a row for each GPU: a band for what runs, as long as it runs."""
    colours = shades(models)
    top = _GPU_TOP
    for number, gpu in enumerate(day[0].gpus):
        height = gpu.cells * _ROW
        yield _text(_LEFT - 8, top + 14, f"GPU {number}", anchor="end")
        yield _text(_LEFT - 8, top + 30, f"{gpu.cells} slices", anchor="end")
        yield _rect((_LEFT, top, _WIDTH - _LEFT - _RIGHT, height), 'class="row"')
        for since, until, piece in periods(day, number):
            cells = piece.span(gpu.cells)
            y, tall = top + cells.start * _ROW, len(cells) * _ROW - 1
            look = f'fill="{colours.get(piece.runs, UNKNOWN)}"'
            box = scale(since), y, round(scale(until) - scale(since), 1), tall
            yield _rect(box, look, piece.runs)
        top += height + _GPU_GAP


def _power(samples: Mapping[str, Sequence[Sample]], scale: _Axis, top: float) -> Iterator[str]:
    """Yield the power of both suites, and the area between them."""
    lines = {
        name: [(scale(at), float(watts)) for at, watts in zip(*_watts(day), strict=True)]
        for name, day in samples.items()
    }
    most = max((watts for line in lines.values() for _, watts in line), default=1.0) * 1.05
    bottom = top + _POWER_HEIGHT
    drawn = {
        name: [(x, bottom - watts / most * _POWER_HEIGHT) for x, watts in line]
        for name, line in lines.items()
    }
    base, ours = drawn["base"], drawn["cinquefoil"]
    yield _text(_LEFT - 8, top + 12, "power", anchor="end")
    yield _text(_LEFT - 8, top + 28, f"up to {most / 1.05:.0f} W", anchor="end")
    yield _rect((_LEFT, bottom, _WIDTH - _LEFT - _RIGHT, 0.5), 'fill="var(--line)"')
    yield f'<polygon points="{_points([*base, *reversed(ours)])}" fill="var(--saved)"/>'
    yield _lines(base, "base", "5 4")
    yield _lines(ours, "used")


def _watts(day: Sequence[Sample]) -> tuple[list[datetime], NDArray[np.float64]]:
    return rates(day, attrgetter("energy_j"), 1.0)


def _hours(scale: _Axis, y: float) -> Iterator[str]:
    """Yield the hours of the day that six divides."""
    at = scale.first.replace(minute=0, second=0, microsecond=0)
    while at <= scale.last:
        if at >= scale.first and at.hour % _HOURS == 0:
            yield _text(scale(at), y, f"{at:%H:%M}", anchor="middle")
        at += timedelta(hours=1)


def _key(day: Sequence[Sample], models: Mapping[str, Model], y: float) -> Iterator[str]:
    colours = shades(models)
    ran = {
        piece.runs.partition("/")[0] for each in day for gpu in each.gpus for piece in gpu.slices
    }
    x = float(_LEFT)
    for name in sorted(ran):
        own = [colours[f"{name}/{variant}"] for variant in models[name].variants]
        for colour in sorted(own, reverse=True):  # the lightest first
            yield _rect((x, y - 10, 10, 11), f'fill="{colour}"')
            x += 10
        yield _text(x + 5, y, name)
        x += 22 + 7 * len(name)
    for words, colour in (("BASE", "base"), ("Cinquefoil", "used")):
        yield _lines([(x, y - 4), (x + 18, y - 4)], colour)
        yield _text(x + 23, y, words)
        x += 40 + 7 * len(words)
    yield _rect((x, y - 10, 16, 11), 'fill="var(--saved)"')
    yield _text(x + 21, y, "saved; darker: more accurate")


def _in_words(title: str, day: Sequence[Sample], changes: Sequence[Change]) -> str:
    values = [value for _, value in changes]
    plans = sum(later.plan != earlier.plan for earlier, later in pairwise(day))
    return (
        f"{title}: while the grid goes from {min(values):.0f} to {max(values):.0f} gCO2e/kWh and "
        f"back, {plans} plans change what runs on the slices of {len(day[0].gpus)} GPUs."
    )

"""The day as a page: intensity, variants in use, power and emissions."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.cli.demo import report
from services.cli.demo.sample import GpuSample, Sample
from services.console import page
from services.console.page import Chart, Line, Table
from services.kit.units import S_PER_H

_NAMES: Final = {"base": "BASE", "cinquefoil": "Cinquefoil"}
_SMOOTH: Final = 8

Change = tuple[datetime, float]
Account = Callable[[Sample], float]

_energy: Account = attrgetter("energy_j")
_carbon: Account = attrgetter("carbon_gco2e")


def write(
    path: Path,
    figures: Mapping[str, report.Figures],
    changes: Sequence[Change],
    samples: Mapping[str, Sequence[Sample]],
) -> None:
    """Write one day as one HTML file.

    Args:
        path: The file.
        figures: Figures by suite, "base" and "cinquefoil".
        changes: (grid time, gCO2e/kWh), oldest first.
        samples: By suite, oldest first, at least two of each.
    """
    both = figures["base"], figures["cinquefoil"]
    day = samples["cinquefoil"]
    page.write(
        page.Report(
            title=report.TITLE,
            headline=f"{report.gain(*both)} {report.price(*both)}",
            about="Both suites got the same requests at the same moments. BASE always serves the "
            "best variant, with a whole GPU for each model.",
            parts=[
                Table("Figures", report.COLUMNS, list(report.rows(*both))),
                _intensity(changes, day),
                *_slices(day),
                _rates("Power of all GPUs", "W", samples, _energy, 1.0),
                _rates("Emissions", "gCO₂e/h", samples, _carbon, S_PER_H),
            ],
        ),
        path,
    )


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
    # Agents report at their own pace: an unchanged reading is not a measurement.
    news = [later for earlier, later in pairwise(samples) if account(later) != account(earlier)]
    step = min(_SMOOTH, len(news) - 1)
    if step < 1:
        return [], np.zeros(0)
    values = np.array([account(reading) for reading in news], dtype=np.float64)
    seconds = np.array([reading.seconds for reading in news])
    slope = (values[step:] - values[:-step]) / np.maximum(seconds[step:] - seconds[:-step], 1e-9)
    middle = [
        first.at + (last.at - first.at) / 2 for first, last in zip(news, news[step:], strict=False)
    ]
    return middle, slope * per


def _intensity(changes: Sequence[Change], day: Sequence[Sample]) -> Chart:
    times_s = [*(since.timestamp() for since, _ in changes), day[-1].at.timestamp()]
    values = [*(value for _, value in changes), changes[-1][1]]
    line = Line("grid", values)
    return Chart("Carbon intensity of the grid", "gCO₂e/kWh", times_s, [line], stepped=True)


def _slices(day: Sequence[Sample]) -> Iterator[Chart]:
    """Yield a chart for each GPU: its compute slices by variant."""
    for number, gpu in enumerate(day[0].gpus):
        held = [_held(reading.gpus[number]) for reading in day]
        lines = [Line(runs, [each[runs] for each in held]) for runs in sorted(set().union(*held))]
        yield Chart(
            f"Cinquefoil: what runs on {gpu.name}",
            f"compute slices of {gpu.cells}",
            [reading.at.timestamp() for reading in day],
            lines,
            stacked=True,
            marks_s=_changes_of_plan(day),
        )


def _held(gpu: GpuSample) -> Counter[str]:
    """Return the compute slices that each variant holds."""
    held: Counter[str] = Counter()
    for piece in gpu.slices:
        held[piece.runs] += piece.cells
    return held


def _changes_of_plan(day: Sequence[Sample]) -> list[float]:
    return [later.at.timestamp() for earlier, later in pairwise(day) if later.plan != earlier.plan]


def _rates(
    caption: str, unit: str, suites: Mapping[str, Sequence[Sample]], account: Account, per: float
) -> Chart:
    """Return a line for each suite, all at the times of the first."""
    found = {_NAMES[name]: rates(day, account, per) for name, day in suites.items()}
    at, _ = next(iter(found.values()))
    times_s = [time.timestamp() for time in at]
    lines = [
        Line(name, np.interp(times_s, [time.timestamp() for time in times], values).tolist())
        for name, (times, values) in found.items()
        if times
    ]
    return Chart(caption, unit, times_s, lines)

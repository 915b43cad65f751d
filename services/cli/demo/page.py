"""The day as a page: intensity, variants in use, power and emissions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.cli.console.slice_bars import SliceCells
from services.cli.demo import report
from services.cli.demo.sample import Sample
from services.console import page
from services.console.page import Band, Bands, Chart, Line, Table
from services.console.palette import UNKNOWN, shades
from services.kit.config import Model
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
    models: Mapping[str, Model],
) -> None:
    """Write one day as one HTML file.

    Args:
        path: The file.
        figures: Figures by suite, "base" and "cinquefoil".
        changes: (grid time, gCO2e/kWh), oldest first.
        samples: By suite, oldest first, at least two of each.
        models: The models, for the colours of their variants.
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
                *_slices(day, shades(models)),
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


def _slices(day: Sequence[Sample], colours: Mapping[str, str]) -> Iterator[Bands]:
    """Yield the slices of each GPU over the day."""
    for number, gpu in enumerate(day[0].gpus):
        bands = [
            Band(
                since.timestamp(),
                until.timestamp(),
                piece.span(gpu.cells).start,
                len(piece.span(gpu.cells)),
                piece.runs,
                colours.get(piece.runs, UNKNOWN),
            )
            for since, until, piece in periods(day, number)
        ]
        yield Bands(f"Cinquefoil: what runs on {gpu.name}", gpu.cells, bands)


def periods(day: Sequence[Sample], number: int) -> Iterator[tuple[datetime, datetime, SliceCells]]:
    """Yield since when and until when each slice of one GPU ran the same."""
    running: dict[SliceCells, datetime] = {}
    for reading in day:
        now = reading.gpus[number].slices
        for piece in [each for each in running if each not in now]:
            yield running.pop(piece), reading.at, piece
        for piece in now:
            running.setdefault(piece, reading.at)
    for piece, since in running.items():
        yield since, day[-1].at, piece


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

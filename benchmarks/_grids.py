"""Recorded carbon intensities of real grids, for benchmarks."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import mode

from benchmarks._data import data_file
from services.carbon.core.model import Sample
from services.carbon.sources.csv_trace import read_trace

OFFICIAL_FORECAST = "official/UK-ESO_2021_forecast"


@dataclass(frozen=True, slots=True)
class Grid:
    """A region's record at regular steps; what is missing is what was there before.

    Attributes:
        name: Kind of figures and region, for example "lca/GB".
        step: Between two samples.
        samples: Oldest first.
    """

    name: str
    step: timedelta
    samples: tuple[Sample, ...]

    def values(self) -> list[float]:
        """Return the intensities, gCO2e/kWh."""
        return [sample.intensity_gco2e_per_kwh for sample in self.samples]


def names() -> list[str]:
    """Return the names of the recorded regions.

    Raises:
        Skipped: There are none here.
    """
    paths = data_file("carbon_intensity").glob("*/*.csv")
    found = sorted(f"{path.parent.name}/{path.stem}" for path in paths)
    return [name for name in found if name != OFFICIAL_FORECAST]


def trace_file(name: str) -> Path:
    """Return the file of a region's record.

    Raises:
        Skipped: The record is not here.
    """
    return data_file(f"carbon_intensity/{name}.csv")


def load(name: str) -> Grid:
    """Return a region's record.

    Raises:
        Skipped: The record is not here.
    """
    recorded = read_trace(trace_file(name))
    step = mode(later.since - earlier.since for earlier, later in pairwise(recorded))
    return Grid(name, step, regular(recorded, step))


def regular(recorded: Sequence[Sample], step: timedelta) -> tuple[Sample, ...]:
    """Return what was in force at every `step` from the first sample to the last."""
    starts = [sample.since for sample in recorded]
    count = (starts[-1] - starts[0]) // step + 1
    instants = (starts[0] + index * step for index in range(count))
    return tuple(
        Sample(when, recorded[bisect_right(starts, when) - 1].intensity_gco2e_per_kwh)
        for when in instants
    )

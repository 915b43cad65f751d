"""Table V: two sets of five jobs; their arrivals, batches, and the grids they run on."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.carbondis.profiles import P4, T4, GpuClass, scale_to

REQUESTS = 20_000
LARGEST_BATCH = 128
J_PER_KWH = 3.6e6
Arrivals = Literal["poisson-milliseconds", "poisson-process"]
PAPERS: Arrivals = "poisson-milliseconds"
ARRIVALS: tuple[Arrivals, ...] = (PAPERS, "poisson-process")
"""Gaps as the generator that the paper cites draws them, and those of a Poisson process."""

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "carbon_intensity" / "lca"
SPRING = (datetime.fromisoformat("2022-04-08T00:00Z"), datetime.fromisoformat("2022-06-08T00:00Z"))
"""Where both traces have Table IV's means and deviations within 0.5 % (their year has not)."""

HOURS = 5
"""Length of 20,000 requests of the slowest job, rounded up."""

_HISTORY = 7 * 24


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of Table V.

    Attributes:
        model: Name of the DNN.
        gap_ms: Mean time between requests, ms.
        mean, std: Of the batch size, items.
        slo_ms: 95th percentile to keep, ms.
        profiled: The figures are Table III's own: the scale is 1, not the SLO's.
    """

    model: str
    gap_ms: float
    mean: int
    std: int
    slo_ms: float
    profiled: bool = False

    def scale(self, low: GpuClass, tightness: float) -> float:
        """Return how much longer it takes than Inception-V3."""
        if self.profiled and tightness == 1.0:
            return 1.0
        return scale_to(self.slo_ms / 1e3, self.mean + self.std, low, tightness)


@dataclass(frozen=True, slots=True)
class Set:
    """A set of jobs.

    Attributes:
        name: "set1" or "set2".
        low: The low-end GPU of each job.
        zone: Of the trace.
        mean, std: The trace's, from Table IV, gCO2e/kWh.
        jobs: Rows.
    """

    name: str
    low: GpuClass
    zone: str
    mean: float
    std: float
    jobs: tuple[JobRow, ...]


SET1 = Set(
    "set1",
    P4,
    "US-CAL-CISO",
    207.13,
    69.23,
    (
        JobRow("Efficient-V2-b3", 480, 30, 20, 290),
        JobRow("Efficient-V2-s", 750, 50, 10, 1000),
        JobRow("Inception-ResNet-V2", 650, 35, 15, 800),
        JobRow("Inception-V3", 590, 65, 10, 500, profiled=True),
        JobRow("MobNet-V2", 270, 70, 25, 250),
    ),
)
SET2 = Set(
    "set2",
    T4,
    "AU-NSW",
    605.59,
    83.67,
    (
        JobRow("MobNet-V3-Large", 360, 55, 30, 120),
        JobRow("MobNet-V3-Small", 210, 25, 10, 20),
        JobRow("NasNet-Mob", 480, 45, 15, 150),
        JobRow("ResNet-V2-50", 540, 60, 20, 300),
        JobRow("ResNet-V2-152", 720, 40, 15, 450),
    ),
)
SETS = (SET1, SET2)


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one job, in order.

    Attributes:
        arrived_s: Arrival times, s.
        sizes: Items in each.
    """

    arrived_s: NDArray[np.float64]
    sizes: NDArray[np.int64]


def load(row: JobRow, arrivals: Arrivals, requests: int, rng: np.random.Generator) -> Load:
    """Draw a job's requests: batch sizes normal, cut to 1..128."""
    sizes = np.clip(np.rint(rng.normal(row.mean, row.std, requests)), 1, LARGEST_BATCH)
    if arrivals == "poisson-milliseconds":
        gaps_ms = rng.poisson(row.gap_ms, requests).astype(float)
    else:
        gaps_ms = rng.exponential(row.gap_ms, requests)
    return Load(np.cumsum(gaps_ms) / 1e3, sizes.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Grid:
    """Carbon intensity in steps from the jobs' begin on, and CIR, which knows the hours before.

    Attributes:
        intensities: gCO2e/kWh.
        ratios: CIR: each over the average of all before it and itself.
        step_s: Length of a step, s.
        source: Origin of the intensities.
    """

    intensities: tuple[float, ...]
    ratios: tuple[float, ...]
    step_s: float
    source: str

    def at(self, time_s: float) -> float:
        """Return the intensity, gCO2e/kWh."""
        return self.intensities[int(time_s // self.step_s)]

    def ratio(self, time_s: float) -> float:
        """Return CIR."""
        return self.ratios[int(time_s // self.step_s)]

    def total(self, since_s: float, until_s: float) -> float:
        """Return the integral of the intensity over a stretch of time, (gCO2e/kWh) s."""
        return float(self._until(until_s) - self._until(since_s))

    def _until(self, time_s: float) -> float:
        step = int(time_s // self.step_s)
        rest_s = time_s - step * self.step_s
        return sum(self.intensities[:step]) * self.step_s + self.intensities[step] * rest_s


@cache
def grid(jobs: Set, step_s: float = 3600.0) -> Grid:
    """Return the set's grid: the trace where it is at hand, else a daily curve of its moments.

    The jobs begin where the next five hours come nearest to the mean and deviation of Table IV.

    Args:
        jobs: The set.
        step_s: Length of an hour of the trace, s: less where fewer requests are simulated.
    """
    hourly, source = _trace(jobs)
    begins = range(_HISTORY, len(hourly) - 2 * HOURS)
    begin = min(begins, key=lambda hour: _distance(hourly[hour : hour + HOURS], jobs))
    end = min(begin + 24, len(hourly))  # slow policies may take longer than five hours
    averages = (np.cumsum(hourly) / np.arange(1, len(hourly) + 1))[begin:end]
    ratios = np.array(hourly[begin:end]) / averages
    return Grid(tuple(hourly[begin:end]), tuple(ratios.tolist()), step_s, source)


def _distance(hours: Sequence[float], jobs: Set) -> float:
    mean, std = fmean(hours), stdev(hours)
    return abs(mean / jobs.mean - 1) + abs(std / jobs.std - 1)


def _trace(jobs: Set) -> tuple[Sequence[float], str]:
    file = TRACES / f"{jobs.zone}.csv"
    if not file.exists():
        angles = 2 * np.pi * (np.arange(61 * 24) - 15) / 24
        daily = jobs.mean + jobs.std * np.sqrt(2) * np.sin(angles)
        return daily.tolist(), "a daily sine with the trace's mean and deviation"
    with file.open(newline="") as lines:
        hourly = [
            float(row["carbon_intensity_gco2_per_kwh"])
            for row in csv.DictReader(lines)
            if SPRING[0] <= datetime.fromisoformat(row["timestamp"]) < SPRING[1]
        ]
    return hourly, f"{jobs.zone}, {SPRING[0]:%Y-%m-%d} to {SPRING[1]:%Y-%m-%d}"

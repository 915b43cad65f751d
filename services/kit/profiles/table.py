"""A measured profile: only what was measured answers.

Two formats, CSV or Parquet, one row per measured point:

- ParvaGPU's (SC'24): `Mig instance` (GPCs), `Batch size`, `Workload Number` (processes),
  `Throughput` (items/s of one process), `Latency` (s, rounded to 1 ms, so not used). Throughput 0
  marks a point that did not run.
- Ours: `profile` (slice kind), `batch_size`, `processes`, `latency_s`, and optionally `energy_j`
  (active energy of one batch) and `gpu`. Latency 0 marks a point that did not run.

Without measured energy, power comes from the analytic model at the measured speed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from services.kit.errors import InvalidArgument
from services.kit.profiles.analytic import AnalyticProfile
from services.kit.profiles.clock_curve import power_ratio, time_ratio
from services.kit.profiles.profile import BatchCost, SliceShape

PARVAGPU = ("Mig instance", "Batch size", "Workload Number", "Throughput")
OURS = ("profile", "batch_size", "processes", "latency_s")


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. Attributes: batch_size; latency_s, None: did not run; energy_j, if known."""

    batch_size: int
    latency_s: float | None
    energy_j: float | None = None


Series = tuple[str, str, int]
"""GPU type, slice ("3g.20gb", or "3g" for any slice of three GPCs), processes."""


@dataclass(frozen=True, slots=True, eq=False)
class TableProfile:
    """Measured points of one network.

    Attributes:
        points: By series, in order of batch size.
        power: The model that stands in for energy that was not measured.
    """

    points: Mapping[Series, tuple[Point, ...]]
    power: AnalyticProfile

    @classmethod
    def read(cls, path: Path, *, gpu: str, gmacs_per_item: float) -> TableProfile:
        """Read a table.

        Args:
            path: CSV, or Parquet where it ends in ".parquet".
            gpu: GPU type of rows that name none.
            gmacs_per_item: Multiply-accumulates per item, 1e9; for energy that was not measured.

        Raises:
            InvalidArgument: The file cannot be read, or is in neither format.
        """
        try:
            frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InvalidArgument(f"{path}: {error}", field="profile.path") from error
        try:
            return cls(_series(_points(frame, gpu)), AnalyticProfile(gmacs_per_item))
        except (pl.exceptions.PolarsError, TypeError, ValueError, InvalidArgument) as error:
            raise InvalidArgument(f"{path}: {error}", field="profile.path") from error

    @property
    def method(self) -> Literal["table"]:
        """The numbers were measured."""
        return "table"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; see `Profile`.

        A partial batch lies on the line between the measured sizes around it. Below the highest
        clock all of the latency is taken to be SM work, the worst case.
        """
        measured = self.points.get((shape.gpu, shape.profile, processes)) or self.points.get(
            (shape.gpu, f"{shape.compute_slices}g", processes)
        )
        point = _at(measured, batch_size) if measured else None
        if point is None or point.latency_s is None:
            return None
        energy_j = point.energy_j
        if energy_j is None:
            power_w = self.power.power_w(shape, batch_size, processes, point.latency_s)
            energy_j = power_w * point.latency_s / processes
        stretch = time_ratio(clock_ratio)
        return BatchCost(point.latency_s * stretch, energy_j * stretch * power_ratio(clock_ratio))


def _points(frame: pl.DataFrame, gpu: str) -> Iterable[tuple[Series, Point]]:
    columns = set(frame.columns)
    if columns.issuperset(PARVAGPU):
        for gpcs, batch_size, processes, items_per_s in frame.select(PARVAGPU).iter_rows():
            latency_s = batch_size / items_per_s if items_per_s else None
            yield (gpu, f"{gpcs}g", processes), Point(batch_size, latency_s)
    elif columns.issuperset(OURS):
        for row in frame.iter_rows(named=True):
            series = (row.get("gpu") or gpu, row["profile"], row["processes"])
            yield series, Point(row["batch_size"], row["latency_s"] or None, row.get("energy_j"))
    else:
        raise InvalidArgument(
            f"columns must be {', '.join(PARVAGPU)} or {', '.join(OURS)}; "
            f"found {', '.join(frame.columns)}"
        )


def _series(points: Iterable[tuple[Series, Point]]) -> dict[Series, tuple[Point, ...]]:
    found: dict[Series, dict[int, Point]] = {}
    for row, (series, point) in enumerate(points, start=2):
        _check(row, series, point)
        found.setdefault(series, {})[point.batch_size] = point
    return {key: tuple(sizes[size] for size in sorted(sizes)) for key, sizes in found.items()}


def _check(row: int, series: Series, point: Point) -> None:
    """Refuse a row of the file that cannot have been measured."""
    numbers: Mapping[str, object] = {
        "batch size": point.batch_size,
        "processes": series[2],
        "latency (or throughput)": point.latency_s or 1.0,
        "energy": point.energy_j or 1.0,
    }
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise InvalidArgument(f"row {row}: {name} must be a positive number, got {number}")


def _at(points: tuple[Point, ...], batch_size: int) -> Point | None:
    above = bisect_left(points, batch_size, key=lambda point: point.batch_size)
    if above == len(points):
        return None
    high = points[above]
    if high.batch_size == batch_size:
        return high
    low = points[above - 1] if above else None
    if low is None or low.latency_s is None or high.latency_s is None:
        return None
    weight = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    energy_j = None
    if low.energy_j is not None and high.energy_j is not None:
        energy_j = low.energy_j + weight * (high.energy_j - low.energy_j)
    return Point(batch_size, low.latency_s + weight * (high.latency_s - low.latency_s), energy_j)

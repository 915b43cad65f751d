"""A measured profile: it has only measured points.

Two formats, CSV or Parquet, one row per measured point:

- ParvaGPU's (SC'24): `Mig instance` (GPCs), `Batch size`, `Workload Number` (processes),
  `Throughput` (items/s of one process), `Latency` (s, rounded to 1 ms, so not used). Throughput 0
  marks a point that did not run.
- Ours (`cinquefoil gpuagent profile` writes it): `profile` (slice kind), `batch_size`,
  `processes`, `latency_s`, and optionally `energy_j` (active energy of one batch), `gpu` and
  `clock_ratio` (SM clock over the GPU's highest; 1 where it is missing). Latency 0 marks a point
  that did not run.

Without measured energy, power comes from the analytic model at the measured speed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.kit.errors import InvalidArgument
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.hardware.gpu_types import curve_of
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.kit.profiles.table_file import Row, read_table

PARVAGPU = ("Mig instance", "Batch size", "Workload Number", "Throughput")
OURS = ("profile", "batch_size", "processes", "latency_s")


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. Attributes: batch_size; latency_s, None: did not run; energy_j, if known."""

    batch_size: int
    latency_s: float | None
    energy_j: float | None = None


Place = tuple[str, str, int]
"""GPU type, slice ("3g.20gb", or "3g" for any slice of three GPCs), processes."""
Series = tuple[str, str, int, float]
"""A place at one clock, as a ratio to the GPU's highest."""


@dataclass(frozen=True, slots=True, eq=False)
class TableProfile:
    """Measured points of one network.

    Attributes:
        points: By series, in order of batch size.
        power: The model that stands in for energy that was not measured.
        clocks: The clock ratios that were measured, by place, ascending.
    """

    points: Mapping[Series, tuple[Point, ...]]
    power: AnalyticProfile
    clocks: Mapping[Place, tuple[float, ...]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clocks", _clocks(self.points))

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
        rows = read_table(path)
        try:
            return cls(_series(_points(rows, gpu)), AnalyticProfile(gmacs_per_item))
        except (TypeError, ValueError, InvalidArgument) as error:
            raise InvalidArgument(f"{path}: {error}", field="profile.path") from error

    @property
    def method(self) -> Literal["table"]:
        """Origin of the numbers: measured."""
        return "table"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; see `Profile`.

        A partial batch lies on the line between the measured sizes around it, and a clock on the
        line between the measured clocks around it. Below the lowest measured clock all of the
        latency is taken to be SM work, the worst case.
        """
        for name in (shape.profile, f"{shape.compute_slices}g"):
            clocks = self.clocks.get((shape.gpu, name, processes))
            if clocks:
                break
        else:
            return None
        above = bisect_left(clocks, clock_ratio)
        if above == len(clocks):
            return None

        def at(index: int) -> BatchCost | None:
            return self._measured(shape, batch_size, (shape.gpu, name, processes, clocks[index]))

        high, low = at(above), at(above - 1) if above else None
        if high is None or clocks[above] == clock_ratio:
            return high
        if low is None:
            return _slowed(high, curve_of(shape.performance), clocks[above], clock_ratio)
        weight = (clock_ratio - clocks[above - 1]) / (clocks[above] - clocks[above - 1])
        return BatchCost(
            low.latency_s + weight * (high.latency_s - low.latency_s),
            low.energy_j + weight * (high.energy_j - low.energy_j),
        )

    def _measured(self, shape: SliceShape, batch_size: int, series: Series) -> BatchCost | None:
        """Return the cost at a measured clock."""
        _, _, processes, clock_ratio = series
        point = _at(self.points[series], batch_size)
        if point is None or point.latency_s is None:
            return None
        energy_j = point.energy_j
        if energy_j is None:
            curve = curve_of(shape.performance)
            full_speed_s = point.latency_s / curve.time_ratio(clock_ratio)
            power_w = self.power.power_w(shape, batch_size, processes, full_speed_s)
            energy_j = power_w * curve.power_ratio(clock_ratio) * point.latency_s / processes
        return BatchCost(point.latency_s, energy_j)


def _slowed(cost: BatchCost, curve: ClockCurve, from_ratio: float, to_ratio: float) -> BatchCost:
    """Return a cost at a lower clock, as if all of its latency were SM work."""
    stretch = curve.time_ratio(to_ratio) / curve.time_ratio(from_ratio)
    power = curve.power_ratio(to_ratio) / curve.power_ratio(from_ratio)
    return BatchCost(cost.latency_s * stretch, cost.energy_j * stretch * power)


def _points(rows: Sequence[Row], gpu: str) -> Iterable[tuple[Series, Point]]:
    columns = rows[0].keys()
    if columns >= set(PARVAGPU):
        for row in rows:
            gpcs, batch_size, processes, items_per_s = (row[name] for name in PARVAGPU)
            latency_s = batch_size / items_per_s if items_per_s else None
            yield (gpu, f"{gpcs}g", processes, 1.0), Point(batch_size, latency_s)
    elif columns >= set(OURS):
        for row in rows:
            place = (row.get("gpu") or gpu, row["profile"], row["processes"])
            clock_ratio = row.get("clock_ratio", 1.0)
            point = Point(row["batch_size"], row["latency_s"] or None, row.get("energy_j"))
            yield (*place, clock_ratio), point
    else:
        raise InvalidArgument(
            f"columns must be {', '.join(PARVAGPU)} or {', '.join(OURS)}; "
            f"found {', '.join(columns)}"
        )


def _series(points: Iterable[tuple[Series, Point]]) -> dict[Series, tuple[Point, ...]]:
    found: dict[Series, dict[int, Point]] = {}
    for row, (series, point) in enumerate(points, start=2):
        _check(row, series, point)
        found.setdefault(series, {})[point.batch_size] = point
    return {key: tuple(sizes[size] for size in sorted(sizes)) for key, sizes in found.items()}


def _clocks(points: Iterable[Series]) -> dict[Place, tuple[float, ...]]:
    found: dict[Place, list[float]] = {}
    for gpu, name, processes, clock_ratio in sorted(points):
        found.setdefault((gpu, name, processes), []).append(clock_ratio)
    return {place: tuple(ratios) for place, ratios in found.items()}


def _check(row: int, series: Series, point: Point) -> None:
    """Check that a row can have been measured."""
    numbers: Mapping[str, object] = {
        "batch size": point.batch_size,
        "processes": series[2],
        "latency (or throughput)": point.latency_s or 1.0,
        "energy": point.energy_j or 1.0,
    }
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            raise InvalidArgument(f"row {row}: {name} must be a positive number, got {number}")
    if not 0 < series[3] <= 1:
        raise InvalidArgument(f"row {row}: clock_ratio must be in (0, 1], got {series[3]}")


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

"""The analytic profile against the artifact's measured points, and corrected by them.

Per application three factors (`Fit`), and for all one idle power per GPU, are fitted by least
squares on logarithms to 18 points on two A100-40GB: p95 latency and mean power of BASE and of one
CLOVER configuration, at three loads each. Points whose p95 exceeds a second are overloaded, and
only their power is used. The points name no variant's own energy, so that within an application
energy follows the published arithmetic.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from scipy.optimize import least_squares

from benchmarks import _fleets as fleets
from benchmarks.clover.applications import ACCURACIES, CLOVER, Fit, profile
from services.planner.core.model import Pool, SegmentKind
from services.planner.core.problem.queueing import latency_s
from services.planner.core.problem.stations import Station

SWEEP = CLOVER / "measured_arrival_sweep/arrival_sweep.csv"
GPUS = 2
OVERLOADED_S = 1.0
SLICES = {"7g": "7g.40gb", "4g": "4g.20gb", "3g": "3g.20gb"}
MOST_S = 100.0
"""Stands for an infinite latency."""

FITTED = (
    {
        "yolo": Fit(0.2317, 0.1614, 0.5499),
        "efficientnet": Fit(0.2714, 2.684, 7.159),
        "albert": Fit(0.0975, 0.0071, 0.8811),
    },
    35.96,
)
"""The fit's values, for checkouts without the measurements."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: load_rps, p95_s, power_w, and what ran on each GPU (slice, variant)."""

    name: str
    scheme: str
    slices: tuple[tuple[str, str], ...]
    load_rps: float
    p95_s: float
    power_w: float


@cache
def calibrated() -> tuple[dict[str, Fit], float]:
    """Return each application's fit, and the idle power of a GPU, W."""
    if not SWEEP.is_file():
        return FITTED
    found = {name: _fit([p for p in points() if p.name == name]) for name in ACCURACIES}
    return {name: fit for name, (fit, _) in found.items()}, median(w for _, w in found.values())


def errors() -> list[dict[str, object]]:
    """Return measured and modelled figures, a row per point."""
    fits, idle_w = calibrated()
    rows: list[dict[str, object]] = []
    for point in points() if SWEEP.is_file() else ():
        p95_s, power_w = _predicted(point, fits[point.name], idle_w)
        rows.append(
            {
                "application": point.name,
                "scheme": point.scheme,
                "load_rps": point.load_rps,
                "p95_ms": 1e3 * point.p95_s,
                "modelled_p95_ms": 1e3 * p95_s,
                "power_w": point.power_w,
                "modelled_power_w": power_w,
                "power_error_pct": 100 * (power_w / point.power_w - 1),
            }
        )
    return rows


def points() -> Iterator[Point]:
    """Yield the artifact's measurements."""
    with SWEEP.open() as lines:
        for row in csv.DictReader(lines):
            parts = (part.strip().split(":") for part in row["config_per_gpu"].split("+"))
            yield Point(
                name=row["service"],
                scheme=row["scheme"],
                slices=tuple((SLICES[size], variant.lower()) for size, variant in parts),
                load_rps=float(row["offered_rps"]),
                p95_s=float(row["p95_latency_ms"]) / 1e3,
                power_w=float(row["mean_power_w"]),
            )


def _fit(measured: Sequence[Point]) -> tuple[Fit, float]:
    def misses(x: Sequence[float]) -> list[float]:
        fit, found = _from(x), []
        for point in measured:
            p95_s, power_w = _predicted(point, fit, x[3])
            if point.p95_s < OVERLOADED_S:
                found.append(math.log(min(p95_s, MOST_S) / point.p95_s))
            found.append(math.log(power_w / point.power_w))
        return found

    # Steps beyond those in which the prediction distinguishes utilisations.
    best = least_squares(misses, [math.log(0.05), 0.0, 0.0, 36.0], diff_step=0.02).x
    return _from(best), float(best[3])


def _from(x: Sequence[float]) -> Fit:
    return Fit(*(math.exp(value) for value in x[:3]))


def _predicted(point: Point, fit: Fit, idle_w: float) -> tuple[float, float]:
    """Return p95 and power; instances share the load equally, as the measured accuracy says."""
    gpu = fleets.gpu_type("a100-40gb")
    stations, power_w = [], GPUS * idle_w
    for slice_name, variant in point.slices:
        shape = gpu.shape(gpu.geometry.kind(slice_name))
        cost = profile(point.name, variant, fit).batch(shape, 1, 1)
        assert cost is not None, "it ran on the real GPU"
        capacity_rps = GPUS / cost.latency_s
        load_rps = point.load_rps / len(point.slices)
        kind = SegmentKind(
            model=point.name,
            variant=variant,
            pool=Pool(gpu, "", 1.0, 0.0),
            profile=slice_name,
            batch_size=1,
            processes=1,
            latency_s=cost.latency_s,
            throughput_rps=1.0 / cost.latency_s,
            energy_j=cost.energy_j,
            accuracy=0.0,
        )
        stations.append(Station(kind, GPUS, load_rps))
        power_w += min(load_rps, capacity_rps) * cost.energy_j
    return latency_s(tuple(stations), 95.0), power_w

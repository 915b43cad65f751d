"""Steadiness that a change of the grid needs to justify a plan: plans against what is lost.

python -m benchmarks.intensity_triggers [--json FILE]

The planner's own triggers (`triggers` and `grid_signal` in `services.planner.core`) watch 60 days
of real grids for each limit and dwell. Twelve A100s serve eight EfficientNet families of different
weight, idle GPUs parked; every cause brings the optimum for the intensity of that moment (`exact`,
changes at no price), which stays until the next. The loss is the difference to the optimum of each
moment, in points of the objective, which weighs carbon and accuracy.

No five-minute record of a grid is at hand. The noisy signal is California's hourly one, joined by
lines, times two states, as the marginal plant changes: +-12 %, each 12 minutes on average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _fleets as fleets
from benchmarks import _grids as grids
from benchmarks.harness import Figures, main
from services.kit.config import Objective, Triggers
from services.planner.core.grid_signal import GridSignal
from services.planner.core.model import Pool
from services.planner.core.problem.score import score
from services.planner.core.strategies.base import base
from services.planner.core.strategies.exact import exact
from services.planner.core.triggers import Observation, cause

TRACES = ("lca/US-CAL-CISO", "lca/DE-LU", "lca/GB", "fine/GB_2020_30min")
NOISY = "lca/US-CAL-CISO, 5 min, noisy"
LIMITS = (0.02, 0.05, 0.1)
DWELLS_S = (0.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
SCALES = np.geomspace(0.7, 3.0, 8).tolist()
DAYS = 60
LOOK_S = 300
ZONE = "Z"
_NOISE, _STATE_LOOKS = 0.12, 2.4


@dataclass(frozen=True, slots=True)
class Optima:
    """The best configurations of a range of intensities; each is worth a line over intensity.

    Attributes:
        solved_at: Intensity that each is the best at, gCO2e/kWh, ascending.
        points: Value of the configuration there, points.
        power_w: Power of the configuration, W.
        slope: Points that a watt costs per gCO2e/kWh.
    """

    solved_at: NDArray[np.float64]
    points: NDArray[np.float64]
    power_w: NDArray[np.float64]
    slope: float

    def chosen(self, intensity: float) -> int:
        """Return the one that a plan at this intensity has."""
        return int(np.argmin(np.abs(np.log(self.solved_at / intensity))))

    def worth(self, held: NDArray[np.int64], now: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the points of the configurations `held` at the intensities `now`."""
        rise = self.solved_at[held] - now
        return self.points[held] + self.slope * self.power_w[held] * rise


def solve() -> Optima:
    """Plan with `exact` for 80 intensities from 5 to 1000 gCO2e/kWh."""
    solved_at = np.geomspace(5.0, 1000.0, 80)
    found = [_scored(intensity) for intensity in solved_at]
    (low, power_w), (high, _) = (_scored(at, best=False) for at in (100.0, 200.0))
    points, watts = (np.array(column) for column in zip(*found, strict=True))
    return Optima(solved_at, points, watts, (low - high) / power_w / 100.0)


def _scored(intensity: float, *, best: bool = True) -> tuple[float, float]:
    """Return points and power of the optimum, or of BASE."""
    pool = Pool(fleets.gpu_type("a100-40gb"), ZONE, 1.0, intensity)
    families = [
        fleets.efficientnet(
            f"x{scale:.2f}", demand_rps=50.0 / scale, slo_s=0.3 * scale, scale=scale
        )
        for scale in SCALES
    ]
    aim = Objective(carbon_weight=0.05, park_idle_gpus=True)
    problem = fleets.problem(fleets.fleet([(pool, 12)]), families, aim)
    found = score(problem, exact(problem) if best else base(problem))
    return found.objective, found.power_w


def signal(name: str) -> NDArray[np.float64]:
    """Return 60 days of a grid, look by look."""
    record = grids.load("lca/US-CAL-CISO" if name == NOISY else name)
    looks = int(record.step.total_seconds()) // LOOK_S
    values = record.values()[: DAYS * 86_400 // LOOK_S // looks + 1]
    if name != NOISY:
        return np.repeat(values[:-1], looks)
    lines = [np.linspace(a, b, looks, endpoint=False) for a, b in pairwise(values)]
    return np.concatenate(lines) * _states(len(lines) * looks)


def _states(count: int) -> NDArray[np.float64]:
    draw, high, found = Random(0), False, []
    for _ in range(count):
        high ^= draw.random() < 1 / _STATE_LOOKS
        found.append(1 + (_NOISE if high else -_NOISE))
    return np.array(found)


def causes(values: Sequence[float], settings: Triggers) -> list[int]:
    """Return the looks at which the planner would plan; the first is one."""
    remembered = GridSignal(settings.intensity_dwell_s)
    planned, found = _observation(values[0], {}), [0]
    for look, value in enumerate(values):
        now_s = float(look * LOOK_S)
        if look == 0 or value != values[look - 1]:
            remembered.hear({ZONE: value}, {}, now_s)
        seen = _observation(value, remembered.ranges(now_s))
        if cause(planned, seen, settings) is not None:
            found.append(look)
            planned = seen
    return found


def _observation(value: float, steady: Mapping[str, tuple[float, float]]) -> Observation:
    return Observation(
        {ZONE: value}, {}, {}, frozenset(), 0.1, strategy="exact", steady_gco2e_per_kwh=steady
    )


def row(
    optima: Optima, values: NDArray[np.float64], limit: float, dwell_s: float
) -> dict[str, Any]:
    """Return what comes of one setting on one grid."""
    settings = Triggers(intensity_change=limit, intensity_dwell_s=dwell_s)
    looks = causes(values.tolist(), settings)
    plans = [optima.chosen(values[look]) for look in looks]
    lasts = np.diff([*looks, len(values)])
    held = np.repeat(np.array(plans), lasts)
    best = np.array([optima.chosen(value) for value in values])
    lost = optima.worth(best, values) - optima.worth(held, values)
    spent, ideal = (float(optima.power_w[each] @ values) for each in (held, best))
    power_w = optima.power_w
    return {
        "change": f"{limit:.0%}",
        "dwell_min": dwell_s / 60,
        "causes_per_day": len(looks) / DAYS,
        "plans_per_day": sum(power_w[a] != power_w[b] for a, b in pairwise(plans)) / DAYS,
        "lost_points": float(lost.mean()),
        "carbon_pct": 100 * (spent / ideal - 1),
    }


def measure() -> list[Figures]:
    """Compare all settings on all grids."""
    optima = solve()
    different = len(set(np.round(optima.power_w, 3)))
    spread = float(np.ptp(optima.points))
    note = (
        f"plans: causes that change what runs ({different} different optima, whose points range "
        f"over {spread:.1f}); carbon: against the optimum of each moment"
    )
    settings = list(product(LIMITS, DWELLS_S))
    tables = []
    for name in (*TRACES, NOISY):
        values = signal(name)
        rows = [row(optima, values, limit, dwell_s) for limit, dwell_s in settings]
        tables.append(Figures(name, rows, note))
    return tables


if __name__ == "__main__":
    main("intensity_triggers", measure)

"""Carbon budgets over a year: kept or not, and the accuracy beside hindsight of each month.

python -m benchmarks.carbon_budgets [--quick] [--json FILE]

Ten A100s serve EfficientNet; `exact` finds the frontier of plans at three loads. The planner's own
control (`services.planner.core.carbon_budget`) then finds the price hour by hour, for the recorded
year of each grid and three loads, with a budget of 85 % of what the best variants emit in a mean
month; profiles state 5 % too little. Hindsight: the one price of a month, all of its hours known,
with which the month's emissions are the budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any, Final

import numpy as np

from benchmarks import _fleets as fleets
from benchmarks import _grids
from benchmarks.harness import Figures, Report, main
from services.kit.config import CarbonBudget, Objective
from services.planner.core.accuracy_mean.control import AccuracyControl
from services.planner.core.accuracy_mean.frontier import Frontier, frontier
from services.planner.core.accuracy_mean.ledger import AccuracyLedger, GridHour
from services.planner.core.carbon_budget.control import CarbonBudgetControl, bounds
from services.planner.core.carbon_budget.seen_hours import SeenHours
from services.planner.core.model import Pool
from services.planner.core.strategies.exact import exact

GPUS: Final = 10
RPS: Final = 900.0
LOADS: Final = (0.5, 1.0, 1.5)
SHARE: Final = 0.85
ERROR: Final = 1.05
HOUR: Final = timedelta(hours=1)


def found_frontier(intensity: float) -> Frontier:
    """Return the frontier of the fleet at a mean intensity."""
    pool = Pool(fleets.gpu_type("a100-40gb"), "Z", 1.2, intensity)
    posed = fleets.problem(
        fleets.fleet([(pool, GPUS)]),
        [fleets.efficientnet("m", demand_rps=RPS, slo_s=0.15, scale=1)],
        Objective(carbon_weight=0.5, park_idle_gpus=True),
        time_limit_s=2.0,
    )
    return frontier(posed, LOADS, exact, 60.0)


def traces(hours: int) -> dict[str, list[float]]:
    """Return loads relative to the usual one: constant, a day's curve, and a week's that grows."""
    day = [1 + 0.4 * math.sin(2 * math.pi * (h - 8) / 24) for h in range(hours)]
    return {
        "constant": [1.0] * hours,
        "day": day,
        "growing": [(0.7 + 0.6 * h / hours) * each for h, each in enumerate(day)],
    }


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours of a year beside a frontier. Attributes: emitted, accuracy (by hour and price)."""

    seen: SeenHours
    loads: Sequence[float]

    def of(self, hour: int, price: float) -> tuple[float, float]:
        """Return emissions, g, and accuracy of an hour at a price in units."""
        level = self.seen.known.levels[int(self.seen.levels[hour])]
        ratio = float(self.seen.ratios[hour])
        plan = int(np.searchsorted(level.prices, price / ratio, "right"))
        grams = ERROR * ratio * float(level.emitted_gco2e_per_h[plan])
        return grams, float(level.accuracy["m"][plan])


def hindsight(hours: Hours, first: int, last: int, budget_g: float) -> float:
    """Return the mean accuracy of a month at the one price that spends its budget."""
    low, high = 1e-4, 1e4

    def total(price: float) -> tuple[float, float]:
        pairs = [hours.of(hour, price) for hour in range(first, last)]
        weights = hours.loads[first:last]
        accuracy = sum(a * w for (_, a), w in zip(pairs, weights, strict=True)) / sum(weights)
        return sum(grams for grams, _ in pairs), accuracy

    if total(high)[0] <= budget_g:
        return total(high)[1]
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if total(middle)[0] <= budget_g else (low, middle)
    under, over = total(low), total(high)
    part = (budget_g - under[0]) / max(over[0] - under[0], 1e-9)  # a mixture of both
    return under[1] + min(max(part, 0.0), 1.0) * (over[1] - under[1])


def run(grid: str, trace: str, values: Sequence[float], loads: Sequence[float]) -> dict[str, Any]:
    """Return what became of a year's budgets."""
    known = found_frontier(fmean(values))
    begin = datetime(2021, 1, 1, tzinfo=UTC)
    rows = [
        GridHour(n, {"Z": max(value, 1.0)}, {"m": RPS * load})
        for n, (value, load) in enumerate(zip(values, loads, strict=True))
    ]
    hours = Hours(SeenHours.of(known, rows), loads)
    best_g = sum(hours.of(n, 1e6)[0] for n in range(len(rows))) / (len(rows) / 730.5)
    budget = CarbonBudget(kg=SHARE * best_g / 1e3, per="month")
    ledger = AccuracyLedger(28 * 24)
    control = CarbonBudgetControl(AccuracyControl(ledger, frontier=known), (budget,), [0.0])
    spent, month, months, first = 0.0, bounds("month", begin)[0], [], 0
    gained = [0.0, 0.0]
    for n, row in enumerate(rows):
        now = begin + n * HOUR
        if bounds("month", now)[0] != month:
            months.append((spent / (1e3 * budget.kg) - 1, gained, first, n))
            spent, month, first, gained = 0.0, bounds("month", now)[0], n, [0.0, 0.0]
        ledger.hold(
            now.timestamp(), intensity=row.intensity_gco2e_per_kwh, demand_rps=row.demand_rps
        )
        control.spent_gco2e = [spent]
        price = control.prices(now)["m"] / known.unit_gco2e["m"]
        grams, accuracy = hours.of(n, price)
        spent += grams
        gained = [gained[0] + accuracy * loads[n], gained[1] + loads[n]]
    kept = [
        each
        for each in months
        if sum(hours.of(n, 1e-6)[0] for n in range(each[2], each[3])) <= 1e3 * budget.kg
    ]
    gaps = [100 * (hindsight(hours, a, b, 1e3 * budget.kg) - g[0] / g[1]) for _, g, a, b in kept]
    return {
        "grid": grid,
        "trace": trace,
        "over": max(max(over, 0.0) for over, *_ in kept) if kept else 0.0,
        "accuracy_gap": fmean(gaps) if gaps else 0.0,
        "months": len(kept),
        "impossible_months": len(months) - len(kept),
    }


def measure(most: int = 10, hours: int = 8760) -> Report:
    """Measure every grid and trace."""
    names = [name for name in _grids.names() if name.startswith("lca/")][:most]
    rows = []
    for name in names:
        values = _grids.load(name).values()[:hours]
        for trace, loads in traces(len(values)).items():
            rows.append(run(name, trace, values, loads))
    note = "over: worst month, share of the budget; accuracy_gap: points below hindsight, mean"
    return Report([Figures("A year of monthly budgets", rows, note)], {"budgets": rows})


def quick() -> Report:
    """Measure two grids for three months."""
    return measure(2, 2190)


if __name__ == "__main__":
    main("carbon_budgets", measure, quick=quick)

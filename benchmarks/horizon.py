"""Does looking ahead pay? Plans over a carbon forecast against plans for the present alone.

Ten A100s serve four EfficientNets for two days of a real grid, planned at every step of its record
by `exact`: for the present alone, 24 hours ahead with the service's own forecast (from the history
up to then), and 24 hours ahead with the future known. All are judged by the same sum: points earned
by the hour, less the price of every change when it is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import pyplot as plt

from benchmarks import _fleets as fleets
from benchmarks import _grids
from benchmarks._grids import Grid
from benchmarks.harness import Figures, Report, main, timed_s
from services.carbon.core.forecast.forecaster import DEPTH, forecast
from services.kit.config import Horizon, Objective
from services.planner.core.forecast.forecast_periods import Step, periods
from services.planner.core.forecast.horizon import plan_ahead
from services.planner.core.model import Model, Period, Pool, Problem, Score, Segment
from services.planner.core.placement.placement import place
from services.planner.core.problem.score import score
from services.planner.core.strategies.base import base
from services.planner.core.strategies.exact import exact

ZONE = "zone"
TRACES = {
    "US-CAL-CISO": "lca/US-CAL-CISO",
    "UK-ESO": "official/UK-ESO_2021",
    "GB, 30 min": "fine/GB_2020_30min",
}
PRICES = (0.0, 1.0, 4.0, 16.0)
"""Objective points to start a segment, per GPU of the fleet; half of it to create a slice."""

DAYS = 2
FIRST = DEPTH + timedelta(days=14)
"""Where in the record the days begin: after all the history that a forecast uses."""

AHEAD = Horizon(length_s=24 * 3600.0)
GPUS = 10
CARBON_WEIGHT = 0.2
PUE = 1.5
SLO_S = 0.15
SCALES = (0.5, 0.6, 0.75, 1.0)
"""Arithmetic of the models over EfficientNet's: each changes variants at another intensity."""

LOAD = 2.0
"""Demand over what BASE can serve; smaller slices with larger batches carry more."""
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision.

    Attributes:
        intensity_gco2e_per_kwh: Carbon intensity then.
        score: Score of the plan.
        started: Segments that had to be started.
        took_s: Time of the decision, s.
    """

    intensity_gco2e_per_kwh: float
    score: Score
    started: int
    took_s: float


Outlook = Callable[[Grid, int], tuple[Period, ...]]


def present_alone(grid: Grid, now: int) -> tuple[Period, ...]:
    """Foresee nothing."""
    del grid, now
    return ()


def forecast_ahead(grid: Grid, now: int) -> tuple[Period, ...]:
    """Foresee what the carbon service forecasts from the history up to `now`."""
    known = grid.samples[max(0, now - DEPTH // grid.step) : now + 1]
    found = forecast(known, known[-1].since)
    steps = [Step(each.since.timestamp(), each.intensity_gco2e_per_kwh) for each in found.periods]
    return periods({ZONE: steps}, AHEAD)


def future_known(grid: Grid, now: int) -> tuple[Period, ...]:
    """Foresee what will come."""
    end = now + int(AHEAD.length_s // grid.step.total_seconds()) + 1
    steps = [
        Step(sample.since.timestamp(), sample.intensity_gco2e_per_kwh)
        for sample in grid.samples[now:end]
    ]
    return periods({ZONE: steps}, AHEAD)


POLICIES: Mapping[str, Outlook] = {
    "present alone": present_alone,
    "forecast, 24 h": forecast_ahead,
    "future known, 24 h": future_known,
}


def measure() -> Report:
    """Run the days of every trace at every price under every policy."""
    days = {
        (trace, price, policy): _run(_grids.load(name), price, outlook)
        for trace, name in TRACES.items()
        for price in PRICES
        for policy, outlook in POLICIES.items()
    }
    tables = [
        Figures(
            f"{trace}: {DAYS} days, {GPUS} A100-40GB, four EfficientNets, lambda {CARBON_WEIGHT}",
            [_row(price, policy, moments, days[trace, price, "present alone"])
             for (name, price, policy), moments in days.items() if name == trace],
            "points: mean of the objective per hour, prices included; gain: over the present "
            "alone; changes: decisions that started segments. The first plan is free: part of a "
            "gain is a first plan that need not be changed. Without prices there is no gain.",
        )
        for trace in TRACES
    ]  # fmt: skip
    return Report(tables, draw=lambda folder: _draw(days, folder))


def _run(grid: Grid, price: float, outlook: Outlook) -> list[Moment]:
    first, count = FIRST // grid.step, timedelta(days=DAYS) // grid.step
    values = grid.values()
    objective = Objective(
        carbon_weight=CARBON_WEIGHT,
        baseline_intensity_gco2e_per_kwh=fmean(values[first : first + count]),
        switch_price=price,
        layout_price=price / 2,
    )
    new_id = fleets.ids()
    pool = Pool(fleets.gpu_type("a100-40gb"), ZONE, PUE, values[first])
    gpus = fleets.fleet([(pool, GPUS)])
    models = _models(pool, objective)
    running: tuple[Segment, ...] = ()
    moments = []
    for now in range(first, first + count):
        gpus, running = fleets.rolled_out(gpus, running, {ZONE: values[now]})
        posed = fleets.problem(gpus, models, objective, running)
        problem = replace(posed, forecast=outlook(grid, now))
        found, took_s = timed_s(plan_ahead, problem, exact)
        target = place(problem, found, new_id)
        started = fleets.changes(running, target)
        moments.append(Moment(values[now], score(problem, found), started, took_s))
        running = target
    return moments


def _models(pool: Pool, objective: Objective) -> list[Model]:
    """Return families of different weight, each with its share of what BASE could nearly serve."""
    return [
        replace(probe, demand_rps=LOAD / len(SCALES) * _base_rps(pool, objective, probe))
        for scale in SCALES
        for probe in [
            fleets.efficientnet(f"x{scale:g}", demand_rps=1.0, slo_s=scale * SLO_S, scale=scale)
        ]
    ]


def _base_rps(pool: Pool, objective: Objective, probe: Model) -> float:
    problem: Problem = fleets.problem(fleets.fleet([(pool, GPUS)]), [probe], objective)
    hosted = base(problem).segments
    capacity_rps = sum(kind.throughput_rps * count for kind, count in hosted.items())
    return objective.max_utilisation * capacity_rps


def _row(price: float, policy: str, moments: list[Moment], others: list[Moment]) -> dict[str, Any]:
    hours = DAYS * 24 / len(moments)
    carbon_g = sum(each.score.carbon_gco2e_per_h * hours for each in moments)
    return {
        "price": price,
        "policy": policy,
        "points": _points(moments),
        "gain": _points(moments) - _points(others),
        "paid": sum(each.score.reconfiguration for each in moments),
        "changes": sum(each.started > 0 for each in moments),
        "started": sum(each.started for each in moments),
        "carbon_kg": carbon_g / 1e3,
        "accuracy": fmean(_accuracy(each) for each in moments),
        "decision_ms": 1e3 * fmean(each.took_s for each in moments),
        "worst_ms": 1e3 * max(each.took_s for each in moments),
    }


def _accuracy(moment: Moment) -> float:
    return fmean(moment.score.accuracy.values())


def _points(moments: list[Moment]) -> float:
    """Return the mean of the objective per hour, prices included."""
    hours = DAYS * 24 / len(moments)
    earned = sum(hours * (each.score.objective + each.score.reconfiguration) for each in moments)
    return (earned - sum(each.score.reconfiguration for each in moments)) / (DAYS * 24)


def _draw(days: Mapping[tuple[str, float, str], list[Moment]], folder: Path) -> None:
    """Draw the accuracy that each policy chose under the carbon intensity, at the middle price."""
    plt.switch_backend("agg")
    figure, panels = plt.subplots(2, len(TRACES), figsize=(12, 5), layout="constrained")
    for (above, below), trace in zip(panels.T, TRACES, strict=True):
        for policy in POLICIES:
            moments = days[trace, PRICES[2], policy]
            hours = [DAYS * 24 * index / len(moments) for index in range(len(moments))]
            chosen = [_accuracy(each) for each in moments]
            below.step(hours, chosen, where="post", label=policy, lw=1)
        above.step(hours, [each.intensity_gco2e_per_kwh for each in moments], "k", where="post")
        above.set(title=trace, ylabel="gCO2e/kWh")
        below.set(xlabel="h", ylabel="accuracy, %")
    panels[1][0].legend(fontsize=7)
    figure.savefig(folder / "horizon.png", dpi=120)


if __name__ == "__main__":
    main("horizon", measure)

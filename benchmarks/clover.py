"""CLOVER's setting (SC'23, section 5): ten A100s, EfficientNet, 48 hours of carbon intensity.

Every strategy plans every hour, on the fleet as its own last plan left it, judged by one score at
equal load and equal number of GPUs. The paper's headline compares BASE at a fifth of the load per
GPU; that comparison is not made here.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import _fleets as fleets
from benchmarks.harness import Figures, main, timed_s
from services.kit.deployment import Objective
from services.planner.domain import Pool, Problem, Score, Segment
from services.planner.placement import place
from services.planner.rollout import plan_rollout
from services.planner.score import score
from services.planner.strategies import REGISTRY
from services.planner.strategies.base import base

TRACE = Path(__file__).parents[1] / "../shared/data/clover/carbon_intensity/carbon_intensity.csv"
HOURS = 48
GPUS = 10
PUE = 1.5
SLO_S = 0.15
BASE_LOAD = 0.9
"""Demand over what BASE may serve: no resource starvation and no idle GPUs (section 5.1)."""


def measure() -> list[Figures]:
    """Run the day and a half for both weights, with and without parking."""
    intensities, source = _intensities()
    tables = []
    for weight in (0.1, 0.5):
        for park in (False, True):
            objective = Objective(
                carbon_weight=weight,
                baseline_intensity_gco2e_per_kwh=fmean(intensities),
                park_idle_gpus=park,
            )
            rows = _compare(objective, intensities)
            powered = "idle GPUs parked" if park else "all GPUs powered"
            tables.append(
                Figures(
                    f"lambda {weight}, {powered}: {GPUS} A100-40GB, EfficientNet, {source}",
                    rows,
                    "gap: exact's f minus the strategy's, points; saving: against BASE at equal "
                    "load and GPUs; late: hours with load beyond the SLO",
                )
            )
    return tables


def _compare(objective: Objective, intensities: Sequence[float]) -> list[dict[str, Any]]:
    hours = {name: _run(name, objective, intensities) for name in REGISTRY}
    best = [found.objective for found, _, _ in hours["exact"]]
    base_g = sum(found.carbon_gco2e_per_h for found, _, _ in hours["base"])
    rows = []
    for name in ("exact", "annealing", "co2opt", "base"):
        scores = [found for found, _, _ in hours[name]]
        gaps = [mine - found.objective for mine, found in zip(best, scores, strict=True)]
        carbon_g = sum(found.carbon_gco2e_per_h for found in scores)
        rows.append(
            {
                "strategy": name,
                "f_points": fmean(found.objective for found in scores),
                "gap_points": fmean(gaps),
                "worst_gap_points": max(gaps),
                "late_hours": sum(_late(found) for found in scores),
                "accuracy": fmean(found.accuracy["vision"] for found in scores),
                "saving_percent": 100 * (1 - carbon_g / base_g),
                "p95_ms": 1e3 * max(found.latency_s["vision"] for found in scores),
                "decision_ms": 1e3 * fmean(took_s for _, took_s, _ in hours[name]),
                "worst_ms": 1e3 * max(took_s for _, took_s, _ in hours[name]),
                "started": sum(started for _, _, started in hours[name]),
            }
        )
    return rows


def _run(
    name: str, objective: Objective, intensities: Sequence[float]
) -> list[tuple[Score, float, int]]:
    """Return, hour by hour: score, time of the decision in s, segments started."""
    new_id = fleets.ids()
    pool = Pool(fleets.gpu_type("a100-40gb"), "US-CAL", PUE, intensities[0])
    gpus = fleets.fleet([(pool, GPUS)])
    running: tuple[Segment, ...] = ()
    model = fleets.efficientnet("vision", demand_rps=_demand_rps(pool, objective), slo_s=SLO_S)
    found = []
    for hour, intensity in enumerate(intensities):
        gpus, running = fleets.rolled_out(gpus, running, {pool.zone: intensity})
        problem = fleets.problem(gpus, [model], objective, running, seed=hour)
        configuration, took_s = timed_s(REGISTRY[name], problem)
        target = place(problem, configuration, new_id)
        plan_rollout(gpus, running, target, [model])
        found.append((score(problem, configuration), took_s, fleets.changes(running, target)))
        running = target
    return found


def _demand_rps(pool: Pool, objective: Objective) -> float:
    probe = fleets.efficientnet("vision", demand_rps=1.0, slo_s=SLO_S)
    problem: Problem = fleets.problem(fleets.fleet([(pool, GPUS)]), [probe], objective)
    hosted = base(problem).segments
    capacity_rps = sum(kind.throughput_rps * count for kind, count in hosted.items())
    return BASE_LOAD * objective.max_utilisation * capacity_rps


def _late(found: Score) -> bool:
    return found.worth[0] < 0 or found.latency_s["vision"] > SLO_S


def _intensities() -> tuple[list[float], str]:
    """Return hourly gCO2e/kWh: CLOVER's March trace, or a daily curve like it."""
    if TRACE.is_file():
        with TRACE.open() as lines:
            values = [float(row["CISO_March"]) for row in csv.DictReader(lines)]
        return values[:HOURS], "CISO March 2021"
    curve = [180 + 110 * math.cos(2 * math.pi * (hour - 1) / 24) for hour in range(HOURS)]
    return curve, "a daily cosine"


if __name__ == "__main__":
    main("clover", measure)

"""48 hours: a strategy plans every hour, on the fleet as its own last plan left it."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from benchmarks import _fleets as fleets
from benchmarks.clover.setting import ZONE, Setting, intensities
from services.planner.core.model import Configuration, Problem, Score, Segment
from services.planner.core.placement.placement import place
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.annealing import PAPER, annealing
from services.planner.core.strategies.candidates import breaks_sla
from services.planner.core.strategies.random_search import random_search

STRATEGIES: Mapping[str, Callable[[Problem], Configuration]] = {
    "base": REGISTRY["base"],
    "co2opt": REGISTRY["co2opt"],
    "random": REGISTRY["random"],
    "random (paper's budget)": lambda problem: random_search(problem, PAPER),
    "annealing": REGISTRY["annealing"],
    "annealing (paper's budget)": lambda problem: annealing(problem, PAPER),
    "exact": REGISTRY["exact"],
    "oracle": REGISTRY["oracle"],
}
BEST = ("exact", "oracle")
"""Strategies of which the better answer is the reference of a gap."""


@dataclass(frozen=True, slots=True)
class Hour:
    """Value of one plan.

    Attributes:
        objective: f, percentage points.
        carbon_g_per_h: Emissions, gCO2e/h.
        accuracy: Mean over the requests, %.
        p95_s: Predicted latency, s.
        broken: Load is refused or late, or the SLO is missed.
        floor_kept: The accuracy floor is.
        decision_s: CPU time of the decision, s.
    """

    objective: float
    carbon_g_per_h: float
    accuracy: float
    p95_s: float
    broken: bool
    floor_kept: bool
    decision_s: float


def run(setting: Setting, strategy: str, hours: Iterable[int]) -> list[Hour]:
    """Return what a strategy's plans are worth, hour by hour."""
    trace = intensities(setting.trace)
    return plan(setting, strategy, [(hour, trace[hour]) for hour in hours])


def plan(setting: Setting, strategy: str, hours: Iterable[tuple[int, float]]) -> list[Hour]:
    """Return the same at given carbon intensities, gCO2e/kWh."""
    new_id, running = fleets.ids(), tuple[Segment, ...]()
    gpus, found = setting.fleet(1.0), []
    for hour, intensity in hours:
        gpus, running = fleets.rolled_out(gpus, running, {ZONE: intensity})
        problem = setting.problem(gpus, running, seed=hour)
        started_s = time.process_time()
        configuration = STRATEGIES[strategy](problem)
        took_s = time.process_time() - started_s
        found.append(_hour(problem, score(problem, configuration), took_s))
        running = place(problem, configuration, new_id)
    return found


def _hour(problem: Problem, judged: Score, took_s: float) -> Hour:
    (model,) = problem.models
    return Hour(
        objective=judged.objective,
        carbon_g_per_h=judged.carbon_gco2e_per_h,
        accuracy=judged.accuracy[model.name],
        p95_s=judged.latency_s[model.name],
        broken=breaks_sla(judged, problem),
        floor_kept=judged.floor_violation <= 1e-6,
        decision_s=took_s,
    )


def compare(days: Mapping[str, list[Hour]], best_accuracy: float) -> dict[str, dict[str, float]]:
    """Return the figures of each strategy; savings are against BASE at equal load and GPUs."""
    tops = [max(each) for each in zip(*([h.objective for h in days[b]] for b in BEST), strict=True)]
    base_g = sum(hour.carbon_g_per_h for hour in days["base"])
    rows = {}
    for strategy, hours in days.items():
        accuracy = fmean(hour.accuracy for hour in hours)
        gaps = [top - hour.objective for top, hour in zip(tops, hours, strict=True)]
        rows[strategy] = {
            "carbon_saving_pct": 100 * (1 - sum(h.carbon_g_per_h for h in hours) / base_g),
            "accuracy_loss_pct": 100 * (1 - accuracy / best_accuracy),
            "sla_violations": sum(hour.broken for hour in hours),
            "gap_to_oracle_points": fmean(gaps),
            "worst_gap_points": max(gaps),
            "objective_points": fmean(hour.objective for hour in hours),
            "accuracy_pct": accuracy,
            "p95_ms": 1e3 * max(hour.p95_s for hour in hours),
            "decision_ms": 1e3 * fmean(hour.decision_s for hour in hours),
        }
    return rows

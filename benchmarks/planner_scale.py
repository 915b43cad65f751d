"""How long the planner thinks: fleets of 10 to 10,000 GPUs, two types in two zones.

Each fleet plans from nothing, then after the grid has changed; the load is what BASE could serve
about three times over, so that slices are scarce. Beside CLOVER's objective with one clock: a
choice of three clocks, and a mix of all goals. Targets: a gap of at most 0.1 % within 2 s at 1,000
GPUs and 20 models, and within 20 s at 10,000 and 100.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from benchmarks import _fleets as fleets
from benchmarks.harness import Figures, main, timed_s
from services.kit.config import Goals, Objective
from services.planner.core.model import Model, Pool, Segment
from services.planner.core.placement.placement import place
from services.planner.core.placement.rollout import plan_rollout
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact

SIZES = ((10, 1), (100, 5), (1_000, 20), (10_000, 100))
"""GPUs and models; each model has four variants."""

PLACED = 1_000
"""Largest fleet that is also placed and planned for again."""

LOADS_RPS = (400.0, 4000.0)
"""Demand per GPU."""

TIME_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is planned for."""

    title: str
    objective: Objective
    clock_ratios: tuple[float, ...] = (1.0,)


CASES = (
    Case("CLOVER's objective, all GPUs powered", Objective(carbon_weight=0.3)),
    Case("CLOVER's objective, idle GPUs parked", Objective(carbon_weight=0.3, park_idle_gpus=True)),
    Case(
        "CLOVER's objective, idle GPUs parked, three clocks",
        Objective(carbon_weight=0.3, park_idle_gpus=True),
        (1.0, 0.8, 0.6),
    ),
    Case(
        "All goals mixed equally",
        Objective(carbon_weight=0.3, goals=Goals(clover=1, fewest_gpus=1, infadapter=1)),
    ),
)


def measure() -> list[Figures]:
    """Plan every size in every case at both loads."""
    return [
        Figures(
            f"{case.title}, {load:g} req/s per GPU",
            [row for gpus, models in SIZES for row in _plan(gpus, models, load, case)],
            "70 % A100-40GB, 30 % H100-80GB; second line: the A100s' grid went from 207 to 400",
        )
        for case in CASES
        for load in LOADS_RPS
    ]


def _plan(number: int, models: int, load_rps: float, case: Case) -> list[dict[str, Any]]:
    a100 = Pool(fleets.gpu_type("a100-40gb"), "US-CAL", 1.5, 207.13)
    h100 = Pool(fleets.gpu_type("h100-80gb"), "FR", 1.2, 60.0)
    gpus = fleets.fleet([(a100, number * 7 // 10), (h100, number - number * 7 // 10)])
    served = _models(models, number * load_rps / models)
    new_id, rows = fleets.ids(), []
    running: tuple[Segment, ...] = ()
    for intensity in (207.13, 400.0):
        gpus, running = fleets.rolled_out(gpus, running, {a100.zone: intensity, h100.zone: 60.0})
        problem, catalog_s = timed_s(
            fleets.problem,
            gpus,
            served,
            case.objective,
            running,
            clock_ratios=case.clock_ratios,
            time_limit_s=TIME_LIMIT_S,
        )
        found, exact_s = timed_s(exact, problem)
        row = {
            "gpus": number,
            "models": models,
            "kinds": len(problem.catalog),
            "segments": sum(found.segments.values()),
            "unserved_rps": sum(score(problem, found).unserved_rps.values()),
            "catalog_s": catalog_s,
            "exact_s": exact_s,
            "gap": found.gap,
        }
        if number > PLACED:
            rows.append(row)
            break
        target, place_s = timed_s(place, problem, found, new_id)
        rollout, rollout_s = timed_s(plan_rollout, gpus, running, target, served)
        rows.append(
            row
            | {
                "place_s": place_s,
                "rollout_s": rollout_s,
                "started": fleets.changes(running, target),
                "stages": len(rollout.stages),
                "least_capacity": min(rollout.least_capacity.values()),
            }
        )
        running = target
    return rows


def _models(number: int, demand_rps: float) -> list[Model]:
    draw = random.Random(0)
    return [
        fleets.efficientnet(
            f"model-{index}",
            demand_rps=demand_rps * draw.uniform(0.3, 1.7),
            slo_s=draw.choice((0.1, 0.15, 0.3)),
            scale=draw.uniform(0.4, 1.5),
        )
        for index in range(number)
    ]


if __name__ == "__main__":
    main("planner_scale", measure)

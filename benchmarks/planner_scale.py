"""How long the planner thinks: fleets of 10, 100 and 1,000 GPUs, two types in two zones.

Each fleet plans from nothing, then after the grid has changed; the load is what BASE could serve
about three times over, so that slices are scarce.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks import _fleets as fleets
from benchmarks.harness import Figures, main, timed_s
from services.kit.deployment import Objective
from services.planner.domain import Model, Pool, Segment
from services.planner.placement import place
from services.planner.rollout import plan_rollout
from services.planner.strategies.exact import exact

SIZES = ((10, 1), (100, 5), (1000, 20))
"""GPUs and models; each model has four variants."""

LOADS_RPS = (400.0, 4000.0)
"""Demand per GPU."""


def measure() -> list[Figures]:
    """Plan every size at both loads."""
    return [
        Figures(
            f"{load:g} req/s per GPU, {'idle GPUs parked' if park else 'all GPUs powered'}",
            [row for gpus, models in SIZES for row in _plan_twice(gpus, models, load, park=park)],
            "70 % A100-40GB, 30 % H100-80GB; second line: the A100s' grid went from 207 to 400",
        )
        for load in LOADS_RPS
        for park in (False, True)
    ]


def _plan_twice(number: int, models: int, load_rps: float, *, park: bool) -> list[dict[str, Any]]:
    a100 = Pool(fleets.gpu_type("a100-40gb"), "US-CAL", 1.5, 207.13)
    h100 = Pool(fleets.gpu_type("h100-80gb"), "FR", 1.2, 60.0)
    gpus = fleets.fleet([(a100, number * 7 // 10), (h100, number - number * 7 // 10)])
    served = _models(models, number * load_rps / models)
    objective = Objective(carbon_weight=0.3, park_idle_gpus=park)
    new_id, rows = fleets.ids(), []
    running: tuple[Segment, ...] = ()
    for intensity in (207.13, 400.0):
        gpus, running = fleets.rolled_out(gpus, running, {a100.zone: intensity, h100.zone: 60.0})
        problem, catalog_s = timed_s(fleets.problem, gpus, served, objective, running)
        found, exact_s = timed_s(exact, problem)
        target, place_s = timed_s(place, problem, found, new_id)
        rollout, rollout_s = timed_s(plan_rollout, gpus, running, target, served)
        rows.append(
            {
                "gpus": number,
                "models": models,
                "kinds": len(problem.catalog),
                "segments": len(target),
                "started": fleets.changes(running, target),
                "stages": len(rollout.stages),
                "least_capacity": min(rollout.least_capacity.values()),
                "catalog_s": catalog_s,
                "exact_s": exact_s,
                "gap": found.gap,
                "place_s": place_s,
                "rollout_s": rollout_s,
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

"""Hints for a cluster autoscaler: nodes that may be removed, GPUs that are missing."""

import math
from collections.abc import Iterable
from dataclasses import replace

from services.kit.config import Goals
from services.planner.core.model import Gpu, Pool, Problem, Score, Segment
from services.planner.core.problem.pricing import gpcs
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import exact

MAX_GPUS = 20_000
"""Largest number of wanted GPUs."""

SOLVE_S = 1.0
"""Limit of one count, s."""

_NOTHING_RPS = 1e-6


def empty_nodes(gpus: Iterable[Gpu], target: Iterable[Segment]) -> tuple[str, ...]:
    """Return the nodes without a planned segment on any GPU, in order of name."""
    used = {segment.node for segment in target}
    return tuple(sorted({gpu.node for gpu in gpus} - used))


def wanted_gpus(problem: Problem, judged: Score) -> dict[str, int]:
    """Return the number of GPUs, by type, that would serve the unserved load.

    Types are alternatives. A type that cannot serve all of it alone is omitted, and so is one
    outside the fleet, which is unknown. Empty: no GPU is missing. The number is the fewest that the
    exact strategy finds for the unserved load alone, which may be one more than a complete re-plan
    needs.

    Args:
        problem: The problem.
        judged: Score of the decision.
    """
    missing = tuple(
        replace(model, demand_rps=rps)
        for model in problem.models
        if (rps := judged.unserved_rps.get(model.name, 0.0)) > _NOTHING_RPS
    )
    if not missing:
        return {}
    largest = {pool.type.name: pool for pool, _ in reversed(problem.pools.most_common())}
    goals = Goals(clover=0.0, fewest_gpus=1.0)
    alone = replace(
        problem,
        models=missing,
        objective=problem.objective.model_copy(update={"goals": goals}),
        running=(),
        forecast=(),
        time_limit_s=min(problem.time_limit_s, SOLVE_S),
    )
    found = {name: _enough(alone, pool) for name, pool in sorted(largest.items())}
    return {name: count for name, count in found.items() if count is not None}


def _enough(problem: Problem, pool: Pool) -> int | None:
    """Return the fewest GPUs of a pool that serve a problem's models; None: no number suffices."""
    kinds = tuple(kind for kind in problem.catalog if kind.pool == pool)
    gpus = len(problem.models)
    for model in problem.models:
        rates = [kind.throughput_rps / gpcs(kind) for kind in kinds if kind.model == model.name]
        if not rates:
            return None
        gpus += math.ceil(2 * model.demand_rps / problem.objective.max_utilisation / max(rates))
    while gpus <= MAX_GPUS:
        fleet = tuple(Gpu(f"wanted-{index}", "wanted", pool) for index in range(gpus))
        posed = replace(problem, gpus=fleet, catalog=kinds)
        judged = score(posed, exact(posed))
        if sum(judged.unserved_rps.values()) <= _NOTHING_RPS:
            return judged.gpus_in_use
        gpus *= 2
    return None

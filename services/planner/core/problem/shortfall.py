"""What a plan cannot keep, in sentences: the mark of a degraded plan."""

from collections.abc import Iterator

from services.planner.core.model import Model, Problem, Score

_MIN_RPS = 1e-6
_MIN_VIOLATION = 1e-6


def shortfall(problem: Problem, score: Score) -> str:
    """Return what `score` falls short of, and why; empty: of nothing.

    Args:
        problem: What was to be decided.
        score: Of what was decided.
    """
    return "; ".join((*_unserved(problem, score), *_floor(problem, score), *_unused(problem)))


def _unserved(problem: Problem, score: Score) -> Iterator[str]:
    possible = {kind.model for kind in problem.catalog}
    for model in problem.models:
        missing_rps = score.unserved_rps.get(model.name, 0.0)
        if missing_rps <= _MIN_RPS:
            continue
        if model.name not in possible:
            yield f"{model.name}: {_no_kind(problem, model)}"
        else:
            yield (
                f"{model.name}: {missing_rps:.1f} of {model.demand_rps:.1f} req/s are not served "
                f"in time: {len(problem.gpus)} GPU(s) are too few"
            )


def _no_kind(problem: Problem, model: Model) -> str:
    share_s = problem.objective.latency_share * model.slo_latency_s
    types = ", ".join(sorted({gpu.pool.type.name for gpu in problem.gpus}))
    return f"no variant fits on {types} and takes at most {share_s:g} s per batch"


def _floor(problem: Problem, score: Score) -> Iterator[str]:
    if score.floor_violation > _MIN_VIOLATION:
        yield (
            f"accuracy: the floor of {problem.objective.accuracy_floor:.1%} of the best variants' "
            f"is missed by {score.floor_violation:.2%}"
        )


def _unused(problem: Problem) -> Iterator[str]:
    """Yield GPU types that no profile knows: GPUs that stand idle although they are there."""
    usable = {kind.pool.type.name for kind in problem.catalog}
    for name in sorted({gpu.pool.type.name for gpu in problem.gpus} - usable):
        count = sum(gpu.pool.type.name == name for gpu in problem.gpus)
        if usable:
            yield f"{count} x {name} stay unused: no profile allows a segment on them"

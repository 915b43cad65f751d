"""What a plan cannot keep, as conditions: the mark of a degraded plan."""

from collections.abc import Iterator

from services.kit.conditions import Condition, ConditionKind
from services.planner.core.model import Model, Problem, Score, SegmentKind
from services.planner.core.problem.catalog import Place, measure

_MIN_RPS = 1e-6
_MIN_VIOLATION = 1e-6


def shortfalls(problem: Problem, score: Score) -> tuple[Condition, ...]:
    """Return what `score` falls short of, and why; empty: of nothing.

    Args:
        problem: What was to be decided.
        score: Of what was decided.
    """
    return (*_unserved(problem, score), *_floor(problem, score), *_unused(problem))


def _unserved(problem: Problem, score: Score) -> Iterator[Condition]:
    possible = {kind.model for kind in problem.catalog}
    for model in problem.models:
        missing_rps = score.unserved_rps.get(model.name, 0.0)
        if missing_rps <= _MIN_RPS:
            continue
        if model.name not in possible:
            yield _no_kind(problem, model)
        else:
            yield Condition(
                ConditionKind.CAPACITY_MISSING,
                f"model/{model.name}",
                f"{model.name}: {missing_rps:.1f} of {model.demand_rps:.1f} req/s are not served "
                f"in time: {_counted(problem)} too few",
                f"models.{model.name}.slo.latency_s",
            )


def _counted(problem: Problem) -> str:
    return "1 GPU is" if len(problem.gpus) == 1 else f"{len(problem.gpus)} GPUs are"


def _no_kind(problem: Problem, model: Model) -> Condition:
    """Return why the catalog has nothing for a model: too slow everywhere, or never measured."""
    subject = f"model/{model.name}"
    types = ", ".join(sorted({gpu.pool.type.name for gpu in problem.gpus}))
    fastest = min(_kinds(problem, model), key=lambda kind: kind.latency_s, default=None)
    if fastest is None:
        return Condition(
            ConditionKind.PROFILE_MISSING,
            subject,
            f"{model.name}: no variant was profiled on {types}, or none fits there",
            f"models.{model.name}.variants.{model.best.name}.profile",
        )
    share_s = problem.objective.latency_share * model.slo_latency_s
    return Condition(
        ConditionKind.NO_VARIANT_MEETS_SLO,
        subject,
        f"{model.name}: no variant on {types} takes at most {share_s:g} s per batch; the fastest, "
        f"{fastest.variant} on {fastest.profile}, takes {fastest.latency_s:.2g} s",
        f"models.{model.name}.slo.latency_s",
    )


def _kinds(problem: Problem, model: Model) -> Iterator[SegmentKind]:
    """Yield every kind that the profiles know of a model, by single processes."""
    for variant in model.variants:
        for pool in dict.fromkeys(gpu.pool for gpu in problem.gpus):
            for stage, _ in variant.stages:
                for slice_kind in pool.type.geometry.kinds:
                    place = Place(model, variant, pool, slice_kind, stage)
                    yield from measure(place, problem.batch_sizes, 1)


def _floor(problem: Problem, score: Score) -> Iterator[Condition]:
    if score.floor_violation > _MIN_VIOLATION:
        yield Condition(
            ConditionKind.ACCURACY_FLOOR_MISSED,
            "plan",
            f"accuracy: the floor of {problem.objective.accuracy_floor:.1%} of the best variants' "
            f"is missed by {score.floor_violation:.2%}",
            "planner.objective.accuracy_floor",
        )


def _unused(problem: Problem) -> Iterator[Condition]:
    """Yield GPU types that no profile knows: GPUs that stand idle although they are there."""
    usable = {kind.pool.type.name for kind in problem.catalog}
    for name in sorted({gpu.pool.type.name for gpu in problem.gpus} - usable):
        count = sum(gpu.pool.type.name == name for gpu in problem.gpus)
        if usable:
            yield Condition(
                ConditionKind.PROFILE_MISSING,
                f"gpu/{name}",
                f"{count} x {name} stay unused: no profile allows a segment on them",
            )

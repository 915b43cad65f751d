"""Conditions of a degraded plan: the promises it cannot keep, and why."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.kit.config import Objective
from services.kit.mig import GPUS_TOGETHER, WHOLE
from services.kit.plurals import counted
from services.kit.profiles.core.language import TokenProfile
from services.planner.core.model import (
    GpuType,
    Model,
    Pool,
    Problem,
    Score,
    SegmentKind,
    Variant,
)
from services.planner.core.problem.catalog import Place, measure

_MIN_SHARE = 1e-6
_MIN_VIOLATION = 1e-6


def shortfalls(
    problem: Problem, score: Score, limited: Collection[str] = ()
) -> tuple[Condition, ...]:
    """Return the promises that `score` misses, and why; empty: none.

    Args:
        problem: The problem.
        score: Score of the configuration.
        limited: Sites whose power budget limits it.
    """
    return (*_unserved(problem, score, limited), *_floor(problem, score), *_unused(problem))


def unservable(
    models: Iterable[Model],
    types: Mapping[GpuType, int],
    objective: Objective,
    batch_sizes: Sequence[int],
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the settings, below `models`, of models that no GPU can serve, and why.

    A variant runs on none of the types, or none keeps the latency rule.

    Args:
        models: Models with their profiles.
        types: Types of all possible GPUs, and how many of each one node has at most; empty:
            unknown, and no model is refused.
        objective: Its `latency_share` is theta.
        batch_sizes: Batch sizes that a segment may have.
    """
    pools = [Pool(each, "", 1.0, 0.0) for each in types]
    for model in models:
        kinds = [
            kind for kind in _kinds(model, pools, batch_sizes) if kind.gpus <= types[kind.pool.type]
        ]
        if pools:
            yield from _unplaced(model, kinds, types, batch_sizes)
        at = (model.name, "slo", "latency_s")
        yield from ((at, why) for why in _tokens_too_slow(model, kinds, objective))
        fastest_s: dict[tuple[str, Pool], dict[int, float]] = {}
        for kind in kinds:
            stages = fastest_s.setdefault((kind.variant, kind.pool), {})
            time_s = kind.latency_s + kind.stage.transfer_s
            stages[kind.stage.index] = min(time_s, stages.get(kind.stage.index, math.inf))
        lengths = {variant.name: len(variant.stages) for variant in model.variants}
        least_s, name = min(
            (
                (sum(stages.values()), variant)
                for (variant, _), stages in fastest_s.items()
                if len(stages) == lengths[variant]
            ),
            default=(math.inf, ""),
        )
        if objective.latency_share * model.slo_latency_s < least_s < math.inf:
            yield (
                at,
                (
                    f"no variant can meet {1e3 * model.slo_latency_s:.4g} ms: the fastest, {name}, "
                    f"takes {1e3 * least_s:.4g} ms per batch, and a batch may take "
                    f"{objective.latency_share:g} of the objective; the rest is for waiting"
                ),
            )


def _unplaced(
    model: Model,
    kinds: Iterable[SegmentKind],
    types: Mapping[GpuType, int],
    batch_sizes: Sequence[int],
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the variants without a kind, or all of them as one, and what would hold them."""
    names = [each.name for each in types]
    placed = {kind.variant for kind in kinds}
    left = [variant for variant in model.variants if variant.name not in placed]
    enough = {each.name: _enough_gpus(each, types, batch_sizes) for each in left}
    if not placed:
        hint = next(filter(None, enough.values()), "")
        yield (model.name, "variants"), _nowhere(names) + hint
        return
    for variant in left:
        why = f"was not profiled on {_listed(names)}, or does not fit there{enough[variant.name]}"
        yield (model.name, "variants", variant.name), why


def _enough_gpus(variant: Variant, types: Mapping[GpuType, int], batch_sizes: Sequence[int]) -> str:
    """Return what to change so that a variant fits, as text; "": nothing is known to help."""
    sizes = GPUS_TOGETHER if isinstance(variant.profile, TokenProfile) else ()
    for gpus in (each for each in sizes if each >= variant.gpus):
        for kind, most in types.items():
            whole = max(kind.geometry.kinds, key=lambda each: each.sm_count)
            shape = kind.shape(whole, gpus)
            if variant.profile.batch(shape, min(batch_sizes), 1) is None:
                continue
            held = f"{gpus} x {kind.name} of one node would hold it"
            if gpus > most:
                return f"; {held}, and the largest has {most}"
            if gpus > 1 and whole.name != WHOLE:
                held += ", with nodes.<n>.allow_mig_mode: false"
            return f"; {held}" + (f": gpus: {gpus}" if gpus > variant.gpus else "")
    return ""


def _nowhere(types: Iterable[str]) -> str:
    return f"no variant was profiled on {_listed(types)}, or none fits there"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _tokens_too_slow(
    model: Model, kinds: Sequence[SegmentKind], objective: Objective
) -> Iterator[str]:
    """Yield the objective of tokens that no variant can meet, if any."""
    times = [kind.token_times for kind in kinds if kind.token_times is not None]
    if not times:
        return
    share = objective.latency_share
    for name, limit_s, least_s in (
        ("ttft_s", share * model.slo_first_token_s, min(each.first_token_s for each in times)),
        ("tpot_s", model.slo_token_s, min(each.token_s for each in times)),
    ):
        if least_s > limit_s:
            yield (
                f"no variant can meet slo.{name}: {1e3 * limit_s:.4g} ms are there for it, and the "
                f"least is {1e3 * least_s:.4g} ms"
            )


def _unserved(problem: Problem, score: Score, limited: Collection[str]) -> Iterator[Condition]:
    possible = {kind.model for kind in problem.catalog if _has_nodes(problem, kind)}
    budgets = [site for site in problem.sites if site.name in limited]
    for model in problem.models:
        missing_rps = score.unserved_rps.get(model.name, 0.0)
        if missing_rps <= _MIN_SHARE * model.demand_rps:
            continue
        if model.name not in possible:
            yield _no_kind(problem, model)
        else:
            why = f"{_counted(problem)} too few{_predicted(model, score)}"
            if budgets:
                names = ", ".join(site.name for site in budgets)
                why = f"the power budget of {names} leaves too little"
            yield Condition(
                ConditionKind.CAPACITY_MISSING,
                f"model/{model.name}",
                f"{model.name}: {_rps(missing_rps)} of {_rps(model.demand_rps)} req/s are not "
                f"served in time: {why}",
                budgets[0].setting if budgets else f"models.{model.name}.slo.latency_s",
            )


def _has_nodes(problem: Problem, kind: SegmentKind) -> bool:
    """Return whether a node has as many GPUs as a segment takes."""
    return kind.gpus == 1 or problem.groups(kind.pool, kind.gpus) > 0


def _counted(problem: Problem) -> str:
    """Return what there is, of machines without a GPU their cores."""
    types = [gpu.pool.type for gpu in problem.gpus]
    if types and all(each.name.startswith("cpu-") for each in types):
        return f"{counted(sum(each.geometry.memory_slices for each in types), 'core')} are"
    return "1 GPU is" if len(problem.gpus) == 1 else f"{len(problem.gpus)} GPUs are"


def _rps(rps: float) -> str:
    return f"{rps:.1f}" if rps >= 1 else f"{rps:.2g}"


def _predicted(model: Model, score: Score) -> str:
    """Return the predicted latency as text, if it misses the objective."""
    latency_s = score.latency_s.get(model.name, math.inf)
    if not model.slo_latency_s < latency_s < math.inf:
        return ""
    return (
        f" (p{model.slo_percentile:g} of {1e3 * latency_s:.3g} ms is predicted, "
        f"{1e3 * model.slo_latency_s:.3g} ms is the objective)"
    )


def _no_kind(problem: Problem, model: Model) -> Condition:
    """Return why the catalog has no kind for a model: too slow everywhere, or never profiled."""
    subject = f"model/{model.name}"
    pools = tuple(dict.fromkeys(gpu.pool for gpu in problem.gpus))
    known = _kinds(model, pools, problem.batch_sizes)
    kinds = (kind for kind in known if _has_nodes(problem, kind))
    fastest = min(kinds, key=lambda kind: kind.latency_s, default=None)
    if fastest is None:
        return Condition(
            ConditionKind.PROFILE_MISSING,
            subject,
            f"{model.name}: {_nowhere(pool.type.name for pool in pools)}",
            f"models.{model.name}.variants.{model.best.name}.profile",
        )
    share_s = problem.objective.latency_share * model.slo_latency_s
    types = ", ".join(sorted({pool.type.name for pool in pools}))
    return Condition(
        ConditionKind.NO_VARIANT_MEETS_SLO,
        subject,
        f"{model.name}: no variant on {types} takes at most {share_s:g} s per batch; the fastest, "
        f"{fastest.variant} on {fastest.profile}, takes {fastest.latency_s:.2g} s",
        f"models.{model.name}.slo.latency_s",
    )


def _kinds(
    model: Model, pools: Sequence[Pool], batch_sizes: Sequence[int]
) -> Iterator[SegmentKind]:
    """Yield every segment kind of one process that the profiles know of a model."""
    for variant in model.variants:
        for pool in pools:
            for stage, _ in variant.stages:
                for slice_kind in pool.type.geometry.kinds:
                    yield from measure(
                        Place(model, variant, pool, slice_kind, stage), batch_sizes, 1
                    )


def _floor(problem: Problem, score: Score) -> Iterator[Condition]:
    if score.floor_violation > _MIN_VIOLATION:
        floor = problem.objective.accuracy_floor
        below = {
            model.name: floor - accuracy / model.best.accuracy
            for model in problem.models
            if (accuracy := score.accuracy.get(model.name, 0.0)) > 0
        }
        worst = max(below, key=lambda name: below[name])
        yield Condition(
            ConditionKind.ACCURACY_FLOOR_MISSED,
            "plan",
            f"accuracy: the floor of {floor:.1%} of the best variants' is missed by "
            f"{below[worst]:.2%} ({worst})",
            "planner.objective.accuracy_floor",
        )


def _unused(problem: Problem) -> Iterator[Condition]:
    """Yield GPU types without a profile: their GPUs stand idle."""
    usable = {kind.pool.type.name for kind in problem.catalog}
    for name in sorted({gpu.pool.type.name for gpu in problem.gpus} - usable):
        count = sum(gpu.pool.type.name == name for gpu in problem.gpus)
        if usable:
            yield Condition(
                ConditionKind.PROFILE_MISSING,
                f"gpu/{name}",
                f"{count} x {name} stay unused: no profile allows a segment on them",
            )

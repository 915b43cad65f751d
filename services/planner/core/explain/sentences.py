"""An explanation in sentences; every number in them was computed, none is estimated."""

from collections.abc import Iterator
from dataclasses import dataclass

from services.kit.plurals import counted
from services.planner.core.explain.alternatives import Judged, difference
from services.planner.core.explain.break_even import BreakEven
from services.planner.core.explain.explanation import percent
from services.planner.core.model import Problem, Score

_OPTIMAL_GAP = 1e-6
_MAX_MODELS = 5
_SAME_POINTS = 5e-3  # what rounds to 0.00


@dataclass(frozen=True, slots=True)
class ExplainedCase:
    """A plan and what it is compared with.

    Attributes:
        problem: What was to be decided.
        chosen: What was decided.
        gap: Proven relative optimality gap, or None.
        base: Each model's best variant on whole GPUs, if the fleet holds it.
        runner_up: The best of `others`.
        others: Configurations that differ from the chosen one.
        turning_points: Carbon weights from which on another configuration would be better.
    """

    problem: Problem
    chosen: Judged
    gap: float | None
    base: Judged | None
    runner_up: Judged | None
    others: tuple[Judged, ...]
    turning_points: tuple[BreakEven, ...]


def sentences(case: ExplainedCase) -> Iterator[str]:
    """Yield the explanation, the most important first."""
    yield _promise(case)
    yield from _unserved("The plan", case.chosen.score)
    yield _proof(case)
    yield from _against_base(case)
    yield from _against_others(case)
    yield from _turning_points(case)


def _promise(case: ExplainedCase) -> str:
    promised = case.chosen.score
    models = [model for model in case.problem.models if model.name in promised.latency_s]
    told = [
        f"{model.name}: p{model.slo_percentile:g} {promised.latency_s[model.name] * 1e3:.0f} of "
        f"{model.slo_latency_s * 1e3:.0f} ms, accuracy {promised.accuracy[model.name]:.4g}"
        for model in models[:_MAX_MODELS]
    ]
    more = [f"{len(models) - len(told)} other models"] if len(models) > len(told) else []
    fleet = (
        f"The plan draws {promised.power_w:.0f} W and emits "
        f"{promised.carbon_gco2e_per_h:.1f} gCO2e/h with "
        f"{counted(promised.powered_gpus, 'GPU')} powered"
    )
    return "; ".join([fleet, *told, *more]) + "."


def _unserved(who: str, promised: Score) -> Iterator[str]:
    for model, rps in promised.unserved_rps.items():
        if rps > 1e-6:
            yield f"{who} leaves {rps:.1f} req/s of {model} unserved."


def _proof(case: ExplainedCase) -> str:
    if case.gap is None:
        return "How far it is from the best is not proven."
    if case.gap <= _OPTIMAL_GAP:
        return "It is proven to be the best there is."
    return f"It is proven to be within {percent(case.gap, 2)} of the best there is."


def _against_base(case: ExplainedCase) -> Iterator[str]:
    if case.base is None:
        idle = not any(model.demand_rps for model in case.problem.models)
        yield "Without load BASE runs nothing." if idle else "BASE does not fit on this fleet."
    elif case.base.graph == case.chosen.graph:
        yield "It is BASE: every model's best variant on whole GPUs."
    else:
        yield f"Against BASE: {_versus(case, case.base)}."
        yield from _unserved("BASE", case.base.score)


def _against_others(case: ExplainedCase) -> Iterator[str]:
    """Yield what the runner-up is; a heuristic's plan may be worse than it, and says so."""
    if case.runner_up is None:
        yield "Nothing else fits on this fleet."
        return
    yield f"The runner-up is {_verdict(case, case.runner_up)}."
    if _as_good(case, case.runner_up):
        rest = [each for each in case.others if not _as_good(case, each)]
        if rest:
            other = max(rest, key=lambda each: each.score.worth)
            yield f"The best that makes a difference is {_verdict(case, other)}."


def _as_good(case: ExplainedCase, other: Judged) -> bool:
    ours, theirs = case.chosen.score, other.score
    return theirs.shortage == ours.shortage and abs(_loses(case, other)) < _SAME_POINTS


def _loses(case: ExplainedCase, other: Judged) -> float:
    return case.chosen.score.objective - other.score.objective


def _verdict(case: ExplainedCase, other: Judged) -> str:
    what, loses = difference(case.chosen, other), _loses(case, other)
    if _as_good(case, other):
        return f"{what}, which is as good"
    if other.score.shortage > case.chosen.score.shortage:
        verdict = "serves less of the demand, or misses the accuracy floor"
    elif other.score.shortage < case.chosen.score.shortage:
        verdict = "serves more of the demand, or keeps the accuracy floor"
    else:
        verdict = f"{'loses' if loses > 0 else 'gains'} {abs(loses):.2f} points"
    return f"{what}, which {verdict}; against it the plan has {_versus(case, other)}"


def _turning_points(case: ExplainedCase) -> Iterator[str]:
    now = case.problem.objective.carbon_weight
    for turn in case.turning_points:
        yield (
            f"With a carbon weight {'above' if turn.above else 'below'} {turn.carbon_weight:.3g} "
            f"(now {now:g}), better would be {difference(case.chosen, turn.other)}."
        )


def _versus(case: ExplainedCase, other: Judged) -> str:
    ours, theirs = case.chosen.score, other.score
    carbon = _relative(ours.carbon_gco2e_per_h, theirs.carbon_gco2e_per_h)
    points = round(_quality(case.problem, ours) - _quality(case.problem, theirs), 2) + 0.0
    return f"{carbon} carbon and {points:+.2f} points of accuracy"


def _relative(ours: float, theirs: float) -> str:
    change = round(ours / theirs - 1, 3) + 0.0 if theirs > 0 else 0.0  # + 0.0: no minus zero
    return f"{change:+.1%}".replace("%", " %")


def _quality(problem: Problem, promised: Score) -> float:
    """Return the mean accuracy relative to the best variants', weighted by demand, points."""
    total_rps = sum(model.demand_rps for model in problem.models)
    return 100.0 * sum(
        model.demand_rps / total_rps * promised.accuracy.get(model.name, 0.0) / model.best.accuracy
        for model in problem.models
        if total_rps > 0
    )

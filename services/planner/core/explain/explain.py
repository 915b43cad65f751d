"""Why a plan is as it is: what binds it, what it promises, what else there was.

Pure, and bounded: a handful of short solves (`alternatives`), whatever the plan's strategy was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.planner.core.explain.alternatives import (
    Judged,
    alternatives,
    difference,
    judge,
    quick,
)
from services.planner.core.explain.binding_constraints import bindings
from services.planner.core.explain.break_even import break_even_points
from services.planner.core.explain.explanation import Alternative, Binding, Explanation
from services.planner.core.explain.sentences import ExplainedCase, sentences
from services.planner.core.model import Configuration, Problem, Segment
from services.planner.core.placement.spares import missing_redundancy, redundancy
from services.planner.core.plan import Prediction
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.score import score
from services.planner.core.problem.shortfall import shortfalls
from services.planner.core.strategies import REGISTRY

_WORTH_TELLING = 1e-6
_ROUNDING = 1e-6
_TINY = 1e-9  # keeps a relative gap finite where the objective is 0, points


@dataclass(frozen=True, slots=True)
class DecidedPlan:
    """What is to be explained.

    Attributes:
        version: Of the plan; 0: a dry run.
        problem: What was to be decided.
        configuration: What was decided, with the gap that was proven.
        solve_s: Time the strategy took, s.
        segments: What was decided, at its places; (): they are not known.
    """

    version: int
    problem: Problem
    configuration: Configuration
    solve_s: float
    segments: tuple[Segment, ...] = ()


def explain(decided: DecidedPlan) -> Explanation:
    """Return why a plan is as it is.

    Raises:
        FailedPrecondition: The plan's slices do not fit on the problem's fleet.
    """
    problem, configuration = decided.problem, decided.configuration
    known, solve = prices(problem), REGISTRY["exact"]
    chosen = Judged(configuration, score(problem, configuration, known))
    optimum = judge(known, solve(quick(problem)))
    others = list(alternatives(problem, configuration, solve))
    if optimum is not None and optimum.graph != chosen.graph:
        others.append(optimum)
    base = judge(known, REGISTRY["base"](problem))
    case = ExplainedCase(
        problem=problem,
        chosen=chosen,
        gap=_gap(chosen, optimum, others),
        base=base if base is not None and base.configuration.segments else None,
        runner_up=max(others, key=lambda each: each.score.worth, default=None),
        others=tuple(others),
        turning_points=tuple(break_even_points(problem, chosen, others, solve)),
    )
    brief = _outlined(decided, chosen)
    binding = (*brief.bindings, *_reconfiguration(problem, chosen))
    return replace(
        brief,
        bindings=tuple(sorted(binding, key=lambda each: -each.used)),
        runner_up=_alternative(chosen, case.runner_up),
        base=_alternative(chosen, case.base),
        gap=case.gap,
        sentences=tuple(sentences(case)),
    )


def outline(decided: DecidedPlan) -> Explanation:
    """Return what explains a plan without a further solve: what it promises, and what binds it.

    Raises:
        FailedPrecondition: As for `explain`.
    """
    known = prices(decided.problem)
    ours = score(decided.problem, decided.configuration, known)
    return _outlined(decided, Judged(decided.configuration, ours))


def _outlined(decided: DecidedPlan, chosen: Judged) -> Explanation:
    problem = decided.problem
    binding = (
        *bindings(problem, decided.configuration, chosen.score, decided.solve_s),
        *_survival(problem, decided.segments),
    )
    return Explanation(
        version=decided.version,
        bindings=tuple(sorted(binding, key=lambda each: -each.used)),
        plan=Prediction.of(chosen.score),
        runner_up=None,
        base=None,
        gap=decided.configuration.gap,
        sentences=(),
        conditions=(
            *shortfalls(problem, chosen.score),
            *(missing_redundancy(problem, decided.segments) if decided.segments else ()),
        ),
    )


def _survival(problem: Problem, segments: Sequence[Segment]) -> Iterator[Binding]:
    """Yield what models must survive, with what the worst loss leaves of them."""
    for model in problem.models if segments else ():
        if not model.survive:
            continue
        found = redundancy(problem, model, segments)
        yield Binding(
            constraint="survive",
            subject=model.name,
            used=min(1.0, found.needed_rps / found.left_rps) if found.left_rps else 1.0,
            sentence=(
                f"{model.name}: {found.needed_rps:.1f} of {model.demand_rps:.1f} req/s must "
                f"survive the loss of any one {model.spread or 'gpu'}; the worst, of {found.lost}, "
                f"leaves {found.left_rps:.1f}."
            ),
        )


def _gap(chosen: Judged, optimum: Judged | None, others: Sequence[Judged]) -> float | None:
    """Return what is proven of a plan; where its strategy proves nothing, what a solve now does.

    What a strategy claims to have proven holds only while none of the others is better than that.
    """
    ours = chosen.score.objective
    best = max((each.score for each in others), key=lambda each: each.worth, default=chosen.score)
    claimed = chosen.configuration.gap
    if best.shortage < chosen.score.shortage:
        return None
    if claimed is not None and best.objective <= ours + max(claimed, _ROUNDING) * abs(ours):
        return claimed
    if optimum is None or optimum.configuration.gap is None:
        return None
    if optimum.score.shortage != chosen.score.shortage:
        return None
    bound = max(best.objective, optimum.score.objective)
    bound += optimum.configuration.gap * abs(optimum.score.objective)
    return max(0.0, bound - ours) / max(abs(ours), _TINY)


def _alternative(chosen: Judged, other: Judged | None) -> Alternative | None:
    if other is None:
        return None
    return Alternative(
        description=difference(chosen, other),
        outlook=Prediction.of(other.score),
        loses=chosen.score.objective - other.score.objective,
    )


def _reconfiguration(problem: Problem, chosen: Judged) -> Iterator[Binding]:
    """Yield the price of reconfiguration where it alone keeps a better configuration away."""
    objective = problem.objective
    if not problem.running or not (objective.switch_price or objective.layout_price):
        return
    update = {"switch_price": 0.0, "layout_price": 0.0}
    free = replace(problem, objective=objective.model_copy(update=update))
    better = REGISTRY["exact"](quick(free))
    known = prices(free)
    ours, theirs = judge(known, chosen.configuration), judge(known, better)
    priced = judge(prices(problem), better)
    if ours is None or theirs is None or priced is None:
        return
    gain, price = theirs.score.objective - ours.score.objective, priced.score.reconfiguration
    if theirs.score.shortage <= ours.score.shortage and gain > _WORTH_TELLING and price > 0:
        yield Binding(
            constraint="reconfiguration_price",
            subject="",
            used=min(1.0, gain / price),
            sentence=(
                f"{difference(chosen, theirs)} would gain {gain:.2f} points, but getting there "
                f"costs {price:.2f}."
            ),
        )

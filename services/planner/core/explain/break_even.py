"""From which carbon weight on another configuration would be better."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from services.planner.core.explain.alternatives import Judged, Solve, judge, quick
from services.planner.core.model import Problem
from services.planner.core.problem.pricing import Prices, prices
from services.planner.core.problem.score import score

_WORTH_TELLING = 5e-3
"""Points that the other one must gain at the far end of the scale: less is rounding."""

_TIE = 1e-6
"""Points that two configurations of equal worth may differ by."""

_PROVEN = 1e-3
"""Gap above which a solve did not end in its time, so that the next one would not either."""

MAX_SOLVES = 3
"""Solves on each side of the present carbon weight."""

Line = Callable[[float], float]
"""Objective by carbon weight, points."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A carbon weight (CLOVER's lambda) at which `other` is worth as much as what was chosen.

    Attributes:
        carbon_weight: The weight.
        above: `other` is better above it; else below.
        other: The configuration.
    """

    carbon_weight: float
    above: bool
    other: Judged


def break_even_points(
    problem: Problem, chosen: Judged, others: Sequence[Judged], solve: Solve
) -> Iterator[BreakEven]:
    """Yield the nearest break-even point below the present carbon weight and the nearest above.

    The objective of a configuration with given loads is linear in the carbon weight, so that the
    optimum is a convex, piecewise linear function of it. Where it leaves the chosen one's line is
    found from outside: solve where the nearest of the others meets that line, and go on from what
    is better there, until nothing is (Eisner and Severance, "Mathematical Techniques for Efficient
    Record Segmentation in Large Shared Databases", J. ACM 23, 1976). What is better than the chosen
    one already, and what serves less, does not count.

    Args:
        problem: What was to be decided.
        chosen: What was decided.
        others: Configurations that differ from it.
        solve: Finds an optimum; called at most MAX_SOLVES times on each side.
    """
    now = problem.objective.carbon_weight
    if not problem.objective.goals.clover:
        return
    ends = [_with_weight(problem, weight) for weight in (0.0, 1.0)]

    def line(judged: Judged) -> Line:
        low, high = (score(e.problem, judged.configuration, e).objective for e in ends)
        return lambda weight: low + weight * (high - low)

    own = line(chosen)

    def gain(other: Judged) -> Line:
        theirs = line(other)
        return lambda weight: theirs(weight) - own(weight)

    lines = [(gain(each), each) for each in others if _may_be(each, chosen)]
    for end in (0.0, 1.0):
        turn = _nearest(lines, now, end)
        for _ in range(MAX_SOLVES if end != now else 0):
            known = _with_weight(problem, turn.carbon_weight if turn else end)
            optimum = judge(known, solve(quick(known.problem)))
            if optimum is None or not _may_be(optimum, chosen):
                break
            lines.append((gain(optimum), optimum))
            before, turn = turn, _nearest(lines, now, end)
            if turn == before or (optimum.configuration.gap or 0.0) > _PROVEN:
                break
        if turn is not None:
            yield turn


def _nearest(lines: Sequence[tuple[Line, Judged]], now: float, end: float) -> BreakEven | None:
    """Return the first break-even point on the way to an end of the scale, if there is one.

    Args:
        lines: Configurations, with what each gains over the chosen one by carbon weight.
        now: The present carbon weight.
        end: 0 or 1.
    """
    found = [
        BreakEven(now + (end - now) * behind / (behind - gain(end)), end > now, other)
        for gain, other in lines
        if gain(end) > _WORTH_TELLING and (behind := min(gain(now), 0.0)) >= gain(now) - _TIE
    ]
    return min(found, key=lambda turn: abs(turn.carbon_weight - now), default=None)


def _may_be(other: Judged, chosen: Judged) -> bool:
    return other.score.shortage == chosen.score.shortage and other.graph != chosen.graph


def _with_weight(problem: Problem, carbon_weight: float) -> Prices:
    objective = problem.objective.model_copy(update={"carbon_weight": carbon_weight})
    return prices(replace(problem, objective=objective))

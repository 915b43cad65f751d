"""From which carbon weight on another configuration would be better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.planner.core.explain.alternatives import Judged
from services.planner.core.model import Problem
from services.planner.core.problem.pricing import Prices, prices
from services.planner.core.problem.score import score

_WORTH_TELLING = 5e-3
"""Points that the other one must gain at the far end of the scale: less is rounding."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A carbon weight (CLOVER's lambda) at which `other` is worth as much as what was chosen."""

    carbon_weight: float
    other: Judged


def break_even_points(
    problem: Problem, chosen: Judged, others: Sequence[Judged]
) -> Iterator[BreakEven]:
    """Yield the nearest break-even point below the present carbon weight and the nearest above.

    The objective is linear in the carbon weight, so that its values at 0 and at 1 determine where
    two configurations with given loads are equal. Only those that serve as much as the chosen one
    count.
    """
    if not problem.objective.goals.clover:
        return
    ends = [_with_weight(problem, weight) for weight in (0.0, 1.0)]
    mine = [_objective(known, chosen) for known in ends]
    turns: list[BreakEven] = []
    for other in others:
        low, high = (_objective(known, other) - own for known, own in zip(ends, mine, strict=True))
        turns_over = min(low, high) < 0 and max(low, high) > _WORTH_TELLING
        if turns_over and other.score.shortage == chosen.score.shortage:
            turns.append(BreakEven(low / (low - high), other))
    now = problem.objective.carbon_weight
    below = [turn for turn in turns if turn.carbon_weight < now]
    above = [turn for turn in turns if turn.carbon_weight > now]
    if below:
        yield max(below, key=_weight)
    if above:
        yield min(above, key=_weight)


def _weight(turn: BreakEven) -> float:
    return turn.carbon_weight


def _with_weight(problem: Problem, carbon_weight: float) -> Prices:
    objective = problem.objective.model_copy(update={"carbon_weight": carbon_weight})
    return prices(replace(problem, objective=objective))


def _objective(known: Prices, judged: Judged) -> float:
    return score(known.problem, judged.configuration, known).objective

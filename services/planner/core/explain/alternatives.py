"""Alternatives to a decision: candidates for a runner-up, and break-even carbon weights.

Two configurations differ if their graphs do: in the number of segments by variant, slice and clock.
A different batch size alone is not a different plan.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import islice

from services.kit.errors import ServiceError
from services.planner.core.explain.binding_constraints import pool_name
from services.planner.core.model import Configuration, Pool, Problem, Score, SegmentKind
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.power_curve import expected
from services.planner.core.problem.pricing import Prices, prices, running_kinds
from services.planner.core.problem.score import score
from services.planner.core.strategies.exact import RELATIVE_GAP

Edge = tuple[str, str, Pool, str, int]
"""Edge of a configuration graph: model, variant, pool, slice and clock."""

Solve = Callable[[Problem], Configuration]

MAX_SOLVES = 4
MAX_NEIGHBOURS = 64
SOLVE_S = 1.0
"""Limit of one solve for a runner-up, s."""

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Judged:
    """A configuration and its score."""

    configuration: Configuration
    score: Score

    @property
    def graph(self) -> Counter[Edge]:
        """Number of segments per edge."""
        return graph(self.configuration.segments)


def alternatives(problem: Problem, chosen: Configuration, solve: Solve) -> Iterator[Judged]:
    """Yield configurations that differ from the chosen one and fit on the fleet.

    The running segments; the optimum without each of the edges that take most load; and the
    neighbours: one segment less, or one variant in place of another on the same slice.

    Args:
        problem: The problem.
        chosen: The chosen configuration.
        solve: Finds an optimum; called at most MAX_SOLVES times, SOLVE_S each.
    """
    known, own = prices(problem), graph(chosen.segments)
    for found in (
        with_load(known, Counter(running_kinds(problem))),
        *_solved(quick(problem), chosen, solve),
        *islice(_neighbours(known, chosen.segments), MAX_NEIGHBOURS),
    ):
        if graph(found.segments) not in (own, Counter()):
            judged = judge(known, found)
            if judged is not None:
                yield judged


def judge(known: Prices, configuration: Configuration, *, fills: bool = True) -> Judged | None:
    """Return a configuration with its score; None: the fleet cannot hold it; see `expected`."""
    try:
        judged = score(known.problem, configuration, known)
        return Judged(configuration, expected(known.problem, configuration, judged, fills=fills))
    except ServiceError:
        return None


def quick(problem: Problem) -> Problem:
    """Return the problem with a short time limit: a quick answer is worth more than the best."""
    return replace(problem, time_limit_s=min(problem.time_limit_s, SOLVE_S))


def graph(segments: Mapping[SegmentKind, int]) -> Counter[Edge]:
    """Return the configuration graph of segments (CLOVER, Def. 1)."""
    counts: Counter[Edge] = Counter()
    for kind, count in segments.items():
        counts[_edge(kind)] += count
    return +counts


def difference(chosen: Judged, other: Judged) -> str:
    """Return the difference of another configuration from the chosen one, as text."""
    ours, theirs = chosen.graph, other.graph
    edges = ours | theirs
    models = len({edge[0] for edge in edges}) > 1
    pools = len({edge[2] for edge in edges}) > 1

    def names(counts: Counter[Edge]) -> str:
        named = [
            f"{f'{count} x ' if count > 1 else ''}{_name(edge, models=models, pools=pools)}"
            for edge, count in counts.most_common(_MAX_NAMED)
        ]
        more = [f"{len(counts) - len(named)} more"] if len(counts) > len(named) else []
        return " + ".join(named + more)

    added, removed = theirs - ours, ours - theirs
    if added and removed:
        return f"{names(added)} instead of {names(removed)}"
    return f"the same and {names(added)}" if added else f"the same without {names(removed)}"


def _solved(problem: Problem, chosen: Configuration, solve: Solve) -> Iterator[Configuration]:
    load_rps: dict[Edge, float] = {}
    for kind, rps in chosen.load_rps.items():
        load_rps[_edge(kind)] = load_rps.get(_edge(kind), 0.0) + rps
    for edge in nlargest(MAX_SOLVES, load_rps, key=lambda edge: load_rps[edge]):
        yield solve(_without(problem, edge))


def _without(problem: Problem, edge: Edge) -> Problem:
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    return replace(
        problem,
        catalog=tuple(kind for kind in problem.catalog if _edge(kind) != edge),
        running=tuple(
            each
            for each in problem.running
            if _edge(replace(each.kind, pool=pools.get(each.gpu_uuid, each.kind.pool))) != edge
        ),
    )


def _neighbours(known: Prices, segments: Mapping[SegmentKind, int]) -> Iterator[Configuration]:
    for kind, count in segments.items():
        if count > 0:
            fewer = {**segments, kind: count - 1}
            yield with_load(known, fewer)
            for other in _other_variants(known.problem, kind):
                yield with_load(known, {**fewer, other: fewer.get(other, 0) + 1})


def _other_variants(problem: Problem, kind: SegmentKind) -> Iterator[SegmentKind]:
    """Yield the fastest kind of each other variant on the same slice at the same clock."""
    fastest: dict[str, SegmentKind] = {}
    for other in problem.catalog:
        if _edge(other)[2:] == _edge(kind)[2:] and other.model == kind.model:
            best = fastest.setdefault(other.variant, other)
            if other.throughput_rps > best.throughput_rps:
                fastest[other.variant] = other
    fastest.pop(kind.variant, None)
    yield from fastest.values()


def _edge(kind: SegmentKind) -> Edge:
    return kind.model, kind.variant, kind.pool, kind.profile, kind.clock_mhz


def _name(edge: Edge, *, models: bool, pools: bool) -> str:
    model, variant, pool, profile, clock_mhz = edge
    return (
        f"{f'{model}/' if models else ''}{variant} on {profile}"
        f"{f' of {pool_name(pool)}' if pools else ''}"
        f"{f' at {clock_mhz} MHz' if clock_mhz else ''}"
    )


_WORTH_SHOWING = 5e-3
"""Least points that the other must gain at the end of the scale; less is rounding."""

_TIE = 1e-6
"""Difference in points up to which two configurations are equal."""

MAX_TURNS = 3
"""Solves on each side of the current carbon weight."""

Line = Callable[[float], float]
"""Objective by carbon weight, points."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """A carbon weight (CLOVER's lambda) at which `other` is worth the same as the chosen one.

    Attributes:
        carbon_weight: The weight.
        above: Whether `other` is better above it; else below.
        other: The configuration.
    """

    carbon_weight: float
    above: bool
    other: Judged


def break_even_points(
    problem: Problem, chosen: Judged, others: Sequence[Judged], solve: Solve
) -> Iterator[BreakEven]:
    """Yield the nearest break-even points below and above the current carbon weight.

    With given loads a configuration's objective is linear in the carbon weight: the optimum is a
    convex, piecewise linear function of it. The point where it leaves the chosen one's line is
    found from outside: solve where the nearest of the others meets that line, and continue from a
    better solution there until there is none (Eisner and Severance, "Mathematical Techniques for
    Efficient Record Segmentation in Large Shared Databases", J. ACM 23, 1976). Configurations that
    are already better than the chosen one, or serve less, do not count.

    Args:
        problem: The problem.
        chosen: The chosen configuration.
        others: Configurations that differ from it.
        solve: Finds an optimum; called at most MAX_TURNS times on each side.
    """
    now = problem.objective.carbon_weight
    if not problem.objective.goals.clover or problem.accuracy_price:
        return  # a price of accuracy is in carbon: both weigh alike
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
        for _ in range(MAX_TURNS if end != now else 0):
            known = _with_weight(problem, turn.carbon_weight if turn else end)
            optimum = judge(known, solve(quick(known.problem)))
            if optimum is None or not _may_be(optimum, chosen):
                break
            lines.append((gain(optimum), optimum))
            before, turn = turn, _nearest(lines, now, end)
            if turn == before or (optimum.configuration.gap or 0.0) > RELATIVE_GAP:
                break
        if turn is not None:
            yield turn


def _nearest(lines: Sequence[tuple[Line, Judged]], now: float, end: float) -> BreakEven | None:
    """Return the first break-even point towards an end of the scale; None: there is none.

    Args:
        lines: Configurations, with their gain over the chosen one by carbon weight.
        now: The current carbon weight.
        end: 0 or 1.
    """
    found = [
        BreakEven(now + (end - now) * behind / (behind - gain(end)), end > now, other)
        for gain, other in lines
        if gain(end) > _WORTH_SHOWING and (behind := min(gain(now), 0.0)) >= gain(now) - _TIE
    ]
    return min(found, key=lambda turn: abs(turn.carbon_weight - now), default=None)


def _may_be(other: Judged, chosen: Judged) -> bool:
    return other.score.shortage == chosen.score.shortage and other.graph != chosen.graph


def _with_weight(problem: Problem, carbon_weight: float) -> Prices:
    objective = problem.objective.model_copy(update={"carbon_weight": carbon_weight})
    return prices(replace(problem, objective=objective))

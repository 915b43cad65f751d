"""The exact strategy: one mixed-integer program for every objective, solved by HiGHS."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from services.kit.grouping import grouped, summed
from services.planner.core.model import Configuration, Pool, Problem, SegmentKind
from services.planner.core.problem.failure_domains import demanding
from services.planner.core.problem.pricing import (
    Prices,
    prices,
    row,
    running_kinds,
    usable,
    worthwhile,
)
from services.planner.core.problem.score import score
from services.planner.core.problem.spare_slices import with_spare_slices
from services.planner.core.solver.stopwatch import Stopwatch
from services.planner.core.strategies.annealing import annealing
from services.planner.core.strategies.base import base
from services.planner.core.strategies.co2opt import co2opt
from services.planner.core.strategies.exact_program import FEW_GPUS, TINY, Formulation
from services.planner.core.strategies.single_slices import single_slices

MAX_CUTS = 32
"""Times that segments which are late together are excluded."""

RELATIVE_GAP = 1e-3
"""Closing the last 0.1 % takes minutes on a large fleet and changes nothing measurable.

A larger gap means that a search ran out of time.
"""


def exact(problem: Problem) -> Configuration:
    """Solve one mixed-integer program: the best configuration there is, with its proven gap.

    Up to FEW_GPUS the gap is 0, and if time runs out before, the other strategies get the rest of
    it. Above, the proof may stop at RELATIVE_GAP, and the others run if nothing is proven.

    The program knows the latency of each kind by itself. Where those that it chose for a model are
    late together, they are excluded and it is solved again.

    Raises:
        InvalidArgument: A number in the problem is not finite or negative.
    """
    watch = Stopwatch()
    known = prices(problem)
    tolerance = 0.0 if len(problem.gpus) <= FEW_GPUS else RELATIVE_GAP
    fastest = tolerance > 0 and known.fewest_only and not problem.objective.accuracy_floor
    kinds = tuple(candidates(known, fastest_only=fastest))
    if not kinds:
        return Configuration({}, {}, gap=0.0)
    found = _solved(known, kinds, watch, tolerance)
    redundant = any(map(demanding, known.models.values()))  # of which the others know nothing
    near = found is not None and (redundant or _near_optimum(found, tolerance))
    if found is not None and near and not _late(known, found):
        return with_spare_slices(known, found)
    left_s = max(0.0, problem.time_limit_s - watch.time_s)
    plain = replace(single_slices(problem), time_limit_s=max(left_s, TINY))
    return _best(known, found, [strategy(plain) for strategy in (annealing, base, co2opt)])


def _solved(
    known: Prices, kinds: Sequence[SegmentKind], watch: Stopwatch, tolerance: float
) -> Configuration | None:
    """Return the program's best configuration in time, or the last one that was late."""
    program, limit_s = Formulation(known, kinds), known.problem.time_limit_s
    found = program.solve(time_limit_s=limit_s, tolerance=tolerance)
    for _ in range(MAX_CUTS):
        if found is None or not _near_optimum(found, tolerance) or watch.time_s >= limit_s:
            return found
        late = _late(known, found)
        for name in late:
            program.exclude(name, found)
        left_s = max(limit_s - watch.time_s, TINY)
        newest = program.solve(time_limit_s=left_s, tolerance=tolerance) if late else None
        if newest is None or newest.segments == found.segments:
            return found
        found = newest
    return found


def _near_optimum(found: Configuration, tolerance: float) -> bool:
    """Return whether a gap is proven; without tolerance, whether it is 0."""
    return found.gap is not None and (tolerance > 0 or not found.gap)


def _late(known: Prices, found: Configuration) -> list[str]:
    """Return models whose segments are late together although each kind is in time alone."""
    unserved_rps = score(known.problem, found, known).unserved_rps
    load_rps = summed(
        (kind.model, rps) for kind, rps in found.load_rps.items() if not kind.stage.index
    )
    return [
        name
        for name, model in known.models.items()
        if unserved_rps[name] > 0 and load_rps.get(name, 0.0) >= model.demand_rps * (1 - TINY)
    ]


def candidates(known: Prices, *, fastest_only: bool = False) -> Iterator[SegmentKind]:
    """Yield the catalog's kinds that the objective distinguishes, and those that run.

    Latency is a rule, not a goal: a kind that is only faster is left out, also a kind that only
    saves energy where energy does not count. Running kinds need not be in the catalog: another may
    be better, but by less than the price of changing.

    Args:
        known: The problem and its prices.
        fastest_only: Whether to yield only the fastest of a model's variants for each slice kind;
            a pipeline's stages stay.
    """
    problem, pools = known.problem, known.problem.pools

    def place(kind: SegmentKind) -> Hashable:
        variant = "" if fastest_only and kind.stage.of == 1 else kind.variant
        return (variant, kind.stage.index, *_place(kind))

    groups = grouped((place(kind), kind) for kind in problem.catalog if kind.pool in pools)
    fastest = fastest_only or not known.energy_matters
    found = [
        kind for group in groups.values() for kind in worthwhile(known, group, fastest_only=fastest)
    ]
    yield from found
    clocks = {(kind.pool, kind.clock_mhz) for kind in found} | {(pool, 0) for pool in pools}
    chosen = {(row(kind), kind.clock_mhz) for kind in found}
    for kind in dict.fromkeys(running_kinds(problem)):
        clocked = (row(kind), kind.clock_mhz)
        allowed = (kind.pool, kind.clock_mhz) in clocks and clocked not in chosen
        if allowed and usable(problem, known.models.get(kind.model), kind):
            chosen.add(clocked)
            yield kind


def _place(kind: SegmentKind) -> tuple[str, Pool, str, int, int]:
    return kind.model, kind.pool, kind.profile, kind.clock_mhz, kind.gpus


def _best(
    known: Prices, found: Configuration | None, others: Sequence[Configuration]
) -> Configuration:
    """Return the best candidate. A bound proven for `found` bounds the others as well.

    Also where `found` is late and another one is not: lateness is no part of its program.
    """
    judged = [(score(known.problem, each, known), each) for each in others]
    best_score, best = max(judged, key=lambda each: each[0].worth)
    if found is None:
        return best
    found_score = score(known.problem, found, known)
    if found_score.worth >= best_score.worth:
        return found
    served = not any(best_score.shortage) and bool(_late(known, found))
    if found.gap is None or not (served or found_score.shortage == best_score.shortage):
        return best
    bound = found_score.objective + found.gap * max(abs(found_score.objective), TINY)
    distance = max(0.0, bound - best_score.objective)
    return replace(best, gap=distance / max(abs(best_score.objective), TINY))

"""BLOVER: CLOVER without its graph (SC'23, section 5.1).

Configurations are drawn in the original space: for every GPU a layout (and a clock, if several are
allowed), for every slice a variant. Start, scoring and end are those of `annealing`.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from services.kit.grouping import grouped
from services.kit.mig import maximal_layouts
from services.planner.core.model import Configuration, Pool, Problem, SegmentKind
from services.planner.core.strategies.annealing import THOROUGH, Schedule, start
from services.planner.core.strategies.candidates import Candidate, Judge, distinct

Choices = Mapping[tuple[Pool, int, str], Sequence[Sequence[SegmentKind]]]
"""Kinds that may run on a slice of a pool at a clock, grouped by variant."""


def random_search(problem: Problem, schedule: Schedule = THOROUGH) -> Configuration:
    """Draw configurations at random; return the best, or what runs (CLOVER's BLOVER)."""
    return max(draws(problem, schedule), key=lambda met: met.score.worth).configuration


def draws(problem: Problem, schedule: Schedule) -> Iterator[Candidate]:
    """Yield the start of the search, and every candidate that it evaluates."""
    judge, draw = Judge(problem), random.Random(problem.seed)  # noqa: S311  # a search, no secret
    best, without_better = judge(start(problem)), 0
    yield best
    choices = _choices(problem)
    for _ in range(schedule.evaluations_for(problem) if choices else 0):
        if without_better >= schedule.patience:
            return
        candidate = judge(_drawn(problem, choices, draw))
        yield candidate
        without_better += 1
        if candidate.score.worth > best.score.worth:
            best, without_better = candidate, 0


def _choices(problem: Problem) -> Choices:
    found = grouped(((k.pool, k.clock_mhz, k.profile), k) for k in distinct(problem))
    return {
        place: tuple(grouped(((kind.model, kind.variant), kind) for kind in kinds).values())
        for place, kinds in found.items()
    }


def _drawn(problem: Problem, choices: Choices, draw: random.Random) -> Mapping[SegmentKind, int]:
    segments: Counter[SegmentKind] = Counter()
    for pool, count in problem.pools.items():
        layouts = maximal_layouts(pool.type.geometry)
        clocks = sorted({clock for other, clock, _ in choices if other == pool})
        for _ in range(count if clocks else 0):
            clock_mhz = draw.choice(clocks)
            for placement in draw.choice(layouts):
                variants = choices.get((pool, clock_mhz, placement.profile))
                if variants:
                    segments[draw.choice(draw.choice(variants))] += 1
    return segments

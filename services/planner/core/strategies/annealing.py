"""CLOVER's simulated annealing over configuration graphs (SC'23, section 4.2).

Neighbours lie within graph edit distance 4; the temperature falls from 1 by 0.05 per iteration to
0.1; a walk ends after `patience` evaluations without a better configuration.

The paper measures each candidate live, for minutes, and therefore stops after 5 such evaluations
(`PAPER`). Here profiles and the queueing model answer in microseconds: `annealing` is more
patient, and starts further walks from the best configuration so far.

Deviations, beside the repair of Eq. 6 (`candidates.energy`):

- The paper's candidates run with the load that their speed draws; ours get the load that suits the
  objective (`services.planner.core.problem.load_split`), as the router can send it.
- Neighbours are drawn only from the kinds that the objective distinguishes.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.planner.core.model import Configuration, Problem, SegmentKind
from services.planner.core.problem.configuration_graph import NEIGHBOURHOOD, are_neighbours
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import prices
from services.planner.core.problem.spare_slices import with_spare_slices
from services.planner.core.solver.stopwatch import Stopwatch
from services.planner.core.strategies.base import base
from services.planner.core.strategies.candidates import Candidate, Judge, distinct, trimmed

HOTTEST, COLDEST, COOLING = 1.0, 0.1, 0.05
TRIES = 50
"""Draws per neighbour before the neighbourhood counts as empty."""

SMALL = 10
"""Fleet size, GPUs x models, for which a schedule's evaluations are meant."""

MIN_EVALUATIONS = 5
"""Evaluations even for the largest fleet: the paper's patience."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Length of a search.

    Attributes:
        patience: Evaluations without a better configuration that end a walk.
        walks: Walks; each starts hot, from the best configuration so far.
        evaluations: Most evaluations in all, on a fleet of SMALL; fewer as it grows, because each
            takes longer.
    """

    patience: int
    walks: int
    evaluations: int

    def evaluations_for(self, problem: Problem) -> int:
        """Return the most evaluations for a problem, >= MIN_EVALUATIONS, without the start."""
        size = len(problem.gpus) * len(problem.models)
        return max(MIN_EVALUATIONS, self.evaluations * SMALL // max(SMALL, size))


PAPER = Schedule(patience=5, walks=1, evaluations=1000)
THOROUGH = Schedule(patience=100, walks=4, evaluations=600)


def annealing(problem: Problem, schedule: Schedule = THOROUGH) -> Configuration:
    """Anneal over configuration graphs from what runs, else BASE; return the best (CLOVER)."""
    best = max(search(problem, schedule), key=lambda met: met.score.worth)
    return with_spare_slices(prices(problem), trimmed(best.configuration))


def search(problem: Problem, schedule: Schedule) -> Iterator[Candidate]:
    """Yield every candidate that the search evaluates, including its start."""
    judge, draw = Judge(problem), random.Random(problem.seed)  # noqa: S311  # a search, no secret
    kinds, watch = distinct(problem), Stopwatch()
    best = judge(start(problem))
    yield best
    for _ in range(schedule.walks):
        for met in _walk(judge, kinds, best, schedule, draw):
            yield met
            if watch.time_s >= problem.time_limit_s:
                return
            if met.score.worth > best.score.worth:
                best = met


def _walk(
    judge: Judge,
    kinds: Sequence[SegmentKind],
    first: Candidate,
    schedule: Schedule,
    draw: random.Random,
) -> Iterator[Candidate]:
    problem, center, best = judge.problem, first, first
    temperature, without_better = HOTTEST, 0
    most = schedule.evaluations_for(problem)
    while judge.scored <= most and without_better < schedule.patience:
        segments = neighbour(problem, kinds, center.configuration.segments, draw)
        if segments is None:
            return
        candidate = judge(segments)
        yield candidate
        without_better += 1
        if candidate.score.worth > best.score.worth:
            best, without_better = candidate, 0
        if accept(center.energy, candidate.energy, temperature, draw.random()):
            center = candidate
        temperature = max(COLDEST, temperature - COOLING)


def accept(energy_now: float, energy_then: float, temperature: float, drawn: float) -> bool:
    """Return whether the search moves to a candidate (Eq. 7). `drawn` is uniform in 0..1."""
    worse_by = energy_then - energy_now
    return worse_by <= 0 or drawn < math.exp(-worse_by / temperature)


def neighbour(
    problem: Problem,
    kinds: Sequence[SegmentKind],
    segments: Mapping[SegmentKind, int],
    draw: random.Random,
) -> dict[SegmentKind, int] | None:
    """Draw a placeable neighbour in the space of configuration graphs; None: none was found.

    Of up to four unit edits of edge weights, some take an instance away from an edge and the others
    add one to an edge of `kinds`.
    """
    for _ in range(TRIES):
        drawn = Counter(segments)
        edits = draw.randint(1, NEIGHBOURHOOD)
        for _ in range(min(draw.randint(0, edits), drawn.total())):
            chosen, counts = zip(*drawn.items(), strict=True)
            drawn.subtract(draw.choices(chosen, counts))
            drawn = +drawn
            edits -= 1
        if kinds:
            drawn.update(draw.choices(kinds, k=edits))
        if are_neighbours(segments, drawn) and gpus_needed(problem, drawn) is not None:
            return dict(drawn)
    return None


def start(problem: Problem) -> Mapping[SegmentKind, int]:
    """Return the start of a search: the last optimum, which runs; else BASE."""
    running = Counter(segment.kind for segment in problem.running)
    known = set(problem.catalog)
    usable = running and known.issuperset(running) and gpus_needed(problem, running) is not None
    return running if usable else base(problem).segments

"""CLOVER's simulated annealing over configuration graphs (SC'23, section 4.2).

Neighbours lie within graph edit distance 4; the temperature falls from 1 by 0.05 per iteration to
0.1; the search ends after 5 evaluations without a better configuration. The paper measures each
candidate live, for at most 5 minutes; here the profiles and the queueing model answer, and a bound
on evaluations keeps the function pure.

Two deviations:

- Eq. 6, h = -f * min(1, L_tail / L), rewards a violated SLO where f < 0. With
  m = min(1, L_tail / L) we use h = -f + (1 - m) * max(|f|, 1), which is Eq. 6 for f >= 1 and a
  penalty everywhere. Load that cannot be served scales m as well.
- The paper's candidates run with whatever load their speed draws; ours get the load that suits the
  objective (`services.planner.sharing`), as the router can send it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from services.planner.domain import Configuration, Problem, Score, SegmentKind
from services.planner.graph import edit_distance, from_graph, to_graph
from services.planner.packing import gpus_needed
from services.planner.pricing import Prices, prices
from services.planner.score import score
from services.planner.sharing import with_load
from services.planner.strategies.base import base

NEIGHBOURHOOD = 4
HOTTEST, COLDEST, COOLING = 1.0, 0.1, 0.05
PATIENCE = 5
EVALUATIONS = 1000
TRIES = 50
"""Draws per neighbour before the neighbourhood counts as empty."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    configuration: Configuration
    score: Score
    energy: float


def annealing(problem: Problem) -> Configuration:
    """Return the best configuration that the search meets, from what runs or from BASE."""
    known = prices(problem)
    draw = random.Random(problem.seed)  # noqa: S311  # a search, not a secret
    center = best = _evaluate(known, _start(problem))
    temperature, without_better = HOTTEST, 0
    for _ in range(EVALUATIONS):
        segments = neighbour(problem, center.configuration.segments, draw)
        if segments is None or without_better >= PATIENCE:
            break
        candidate = _evaluate(known, segments)
        if candidate.score.worth > best.score.worth:
            best, without_better = candidate, 0
        else:
            without_better += 1
        if accept(center.energy, candidate.energy, temperature, draw.random()):
            center = candidate
        temperature = max(COLDEST, temperature - COOLING)
    return best.configuration


def energy(found: Score, problem: Problem) -> float:
    """Return CLOVER's h (Eq. 6), repaired; smaller is better."""
    demand_rps = sum(model.demand_rps for model in problem.models)
    served = 1.0 - sum(found.unserved_rps.values()) / demand_rps if demand_rps else 1.0
    slos = {model.name: model.slo_latency_s for model in problem.models}
    slowest = max(
        (latency_s / slos[name] for name, latency_s in found.latency_s.items()), default=1.0
    )
    kept = served if math.isinf(slowest) else served * min(1.0, 1.0 / slowest)
    return -found.objective + (1.0 - kept) * max(abs(found.objective), 1.0)


def accept(energy_now: float, energy_then: float, temperature: float, drawn: float) -> bool:
    """Decide whether the search moves there (Eq. 7). `drawn` is uniform in 0..1."""
    worse_by = energy_then - energy_now
    return worse_by <= 0 or drawn < math.exp(-worse_by / temperature)


def neighbour(
    problem: Problem, segments: Mapping[SegmentKind, int], draw: random.Random
) -> dict[SegmentKind, int] | None:
    """Draw a placeable configuration within edit distance 4; None: none was met.

    Of up to four unit edits, some take an instance away and the others add one of the catalog's.
    """
    center = to_graph(segments)
    for _ in range(TRIES):
        drawn = Counter(from_graph(center))
        edits = draw.randint(1, NEIGHBOURHOOD)
        for _ in range(min(draw.randint(0, edits), drawn.total())):
            kinds, counts = zip(*drawn.items(), strict=True)
            drawn.subtract(draw.choices(kinds, counts))
            drawn = +drawn
            edits -= 1
        if problem.catalog:
            drawn.update(draw.choices(problem.catalog, k=edits))
        distance = edit_distance(center, to_graph(drawn))
        if 0 < distance <= NEIGHBOURHOOD and gpus_needed(problem, drawn) is not None:
            return dict(drawn)
    return None


def _start(problem: Problem) -> Mapping[SegmentKind, int]:
    running = Counter(segment.kind for segment in problem.running)
    known = set(problem.catalog)
    usable = running and known.issuperset(running) and gpus_needed(problem, running) is not None
    return running if usable else base(problem).segments


def _evaluate(known: Prices, segments: Mapping[SegmentKind, int]) -> _Candidate:
    configuration = with_load(known, segments)
    found = score(known.problem, configuration, known)
    return _Candidate(configuration, found, energy(found, known.problem))

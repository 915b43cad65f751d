"""Candidates of searches: configurations with their scores and CLOVER's energy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.kit.grouping import grouped
from services.planner.core.model import Configuration, Problem, Score, SegmentKind
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import Prices, prices, worthwhile
from services.planner.core.problem.score import score

FLOOR_POINTS = 100.0
"""Penalty for one percentage point of accuracy below the floor, points of f."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration with its score.

    Attributes:
        configuration: The configuration.
        score: Its score.
        energy: CLOVER's h, see `energy`.
    """

    configuration: Configuration
    score: Score
    energy: float


@dataclass(slots=True)
class Judge:
    """Scores the configurations of one problem, and caches the scores.

    Attributes:
        problem: The problem.
        scored: Distinct configurations scored so far.
    """

    problem: Problem
    scored: int = 0
    _known: Prices = field(init=False)
    _memory: dict[frozenset[tuple[SegmentKind, int]], Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = prices(self.problem)

    def __call__(self, segments: Mapping[SegmentKind, int]) -> Candidate:
        """Return the candidate of `segments` with the load that suits them best.

        Raises:
            FailedPrecondition: They do not fit on the fleet.
        """
        key = frozenset(segments.items())
        if key not in self._memory:
            self._memory[key] = self._judge(segments)
            self.scored += 1
        return self._memory[key]

    def _judge(self, segments: Mapping[SegmentKind, int]) -> Candidate:
        configuration = with_load(self._known, segments)
        # Kinds without load are not started: they would keep GPUs in use for nothing.
        found = score(self.problem, trimmed(configuration), self._known)
        return Candidate(configuration, found, energy(found, self.problem))


def energy(found: Score, problem: Problem) -> float:
    """Return CLOVER's h (Eq. 6), repaired; smaller is better.

    h = -f * min(1, L_tail / L) rewards a violated SLO where f < 0. With m = min(1, L_tail / L) we
    use h = -f + (1 - m) * max(|f|, 1), which is Eq. 6 for f >= 1 and a penalty everywhere. Load
    that cannot be served scales m as well; accuracy below the floor costs FLOOR_POINTS, as does a
    percent above a power budget.
    """
    demand_rps = sum(model.demand_rps for model in problem.models)
    served = 1.0 - sum(found.unserved_rps.values()) / demand_rps if demand_rps else 1.0
    slos = {model.name: model.slo_latency_s for model in problem.models}
    slowest = max(
        (latency_s / slos[name] for name, latency_s in found.latency_s.items()), default=1.0
    )
    kept = served if math.isinf(slowest) else served * min(1.0, 1.0 / slowest)
    penalty = (1.0 - kept) * max(abs(found.objective), 1.0)
    missed = found.floor_violation + found.over_budget
    return -found.objective + penalty + FLOOR_POINTS * 100.0 * missed


def breaks_sla(found: Score, problem: Problem, *, share: float = 0.0) -> bool:
    """Return whether load is predicted to be refused or late, or a percentile to miss its SLO.

    Args:
        found: A configuration's score.
        problem: The problem, with SLOs and demand.
        share: Share of the demand that may be refused, 0..1.
    """
    slos = {model.name: model.slo_latency_s for model in problem.models}
    late = any(latency_s > slos[name] for name, latency_s in found.latency_s.items())
    demand_rps = sum(model.demand_rps for model in problem.models)
    return late or found.shortage[2] > share * demand_rps


def trimmed(configuration: Configuration) -> Configuration:
    """Return a configuration without the kinds that have no load."""
    load_rps = {kind: rps for kind, rps in configuration.load_rps.items() if rps > 0}
    segments = {kind: n for kind, n in configuration.segments.items() if kind in load_rps}
    return Configuration(segments, load_rps, configuration.gap)


def distinct(problem: Problem) -> tuple[SegmentKind, ...]:
    """Return the catalog's kinds that an objective distinguishes.

    Latency is a rule: among the kinds of one variant on one slice only admissible load and energy
    count.
    """
    known = prices(problem)
    groups = grouped(
        ((kind.model, kind.variant, kind.pool, kind.profile, kind.clock_mhz), kind)
        for kind in problem.catalog
    )
    return tuple(kept for group in groups.values() for kept in worthwhile(known, group))

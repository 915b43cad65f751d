"""Segment Configurator (ParvaGPU, SC'24, section III-D, Algorithm 1): which segments a model gets.

A triplet is the fastest way to run a model on a slice of so many GPCs. Repaired:

- A point that ran out of memory is no candidate (the public code reads its latency, 0, as in time).
- The latency rule is the objective's `latency_share` (the code: 0.45 x SLO, cut to whole ms).
- A size without a triplet is passed over (the code compares the demand with a null pointer).
- A demand that the optimal segments meet exactly gets no last segment (Algorithm 1, line 20).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.planner.core.model import Pool, Problem, SegmentKind
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.strategies.parvagpu.slots import Size, sizes

ROUNDING = 1e-9
"""Share of a demand that floating point may add or lose."""

SMALL_GPCS = 2
"""Allocation Optimisation splits into segments up to this size (section III-E)."""


@dataclass(frozen=True, slots=True, eq=False)
class Triplet:
    """The fastest segment of a model on so many GPCs.

    Attributes:
        kind: Slice, batch size and processes.
        size: The slice, and where it may be.
        usable_rps: What a plan may send it, all processes together, req/s.
    """

    kind: SegmentKind
    size: Size
    usable_rps: float

    @property
    def rps_per_gpc(self) -> float:
        """How much it makes of its slice, req/s."""
        return self.usable_rps / self.size.gpcs


Choice = Mapping[str, Sequence[Triplet]]
"""A pool's triplets by model, smallest first; models that it cannot serve in time are left out."""


def triplets(problem: Problem) -> dict[Pool, Choice]:
    """Return the optimal triplets of every pool (Optimal Triplet Decision).

    ParvaGPU's models have one variant. Of several, a pool runs the most accurate that keeps the
    latency rule there. Of slice kinds with equal GPCs, a model gets the one with least memory that
    it fits into. Clocks are left alone.
    """
    found: dict[Pool, dict[str, list[SegmentKind]]] = {pool: {} for pool in problem.pools}
    models = {model.name: model for model in problem.models if model.demand_rps > 0}
    known = {pool: sizes(pool.type.geometry) for pool in found}
    for kind in problem.catalog:
        if kind.model in models and not kind.clock_mhz and kind.profile in known[kind.pool]:
            found[kind.pool].setdefault(kind.model, []).append(kind)
    usable_rps = {
        kind: admissible_rps(problem.objective, models[kind.model], kind)
        for own in found.values()
        for kinds in own.values()
        for kind in kinds
    }
    choices = (
        (pool, {name: _fastest(kinds, known[pool], usable_rps) for name, kinds in own.items()})
        for pool, own in found.items()
    )
    return {pool: {name: choice for name, choice in own.items() if choice} for pool, own in choices}


def match(demand_rps: float, choice: Sequence[Triplet], most: int) -> Iterator[Triplet]:
    """Yield segments for a demand (Demand Matching).

    As many of the triplet with the largest throughput per GPC as the demand fills, then one of the
    smallest size that serves the rest.

    Args:
        demand_rps: Demand, req/s.
        choice: A model's triplets, smallest first.
        most: Largest number of segments; it keeps an excessive demand from exhausting memory.
    """
    best = max(choice, key=lambda triplet: triplet.rps_per_gpc)
    number = math.floor(demand_rps / best.usable_rps + ROUNDING)
    yield from [best] * min(number, most)
    left_rps = demand_rps - number * best.usable_rps
    if left_rps > ROUNDING * demand_rps:
        yield next(triplet for triplet in choice if triplet.usable_rps >= left_rps)


def split(demand_rps: float, choice: Sequence[Triplet]) -> Iterator[Triplet]:
    """Yield small segments for a demand (SMALLSEGMENTS); none where the model has no small triplet.

    The size that serves most per GPC comes first; it exceeds the demand only where no smaller one
    is left to serve the rest.
    """
    left_rps = demand_rps
    small = sorted(filter(is_small, choice), key=lambda triplet: -triplet.rps_per_gpc)
    for index, triplet in enumerate(small):
        number = left_rps / triplet.usable_rps
        if any(other.size.gpcs < triplet.size.gpcs for other in small[index:]):
            count = math.floor(number + ROUNDING)
        else:
            count = math.ceil(number - ROUNDING)
        yield from [triplet] * count
        left_rps -= count * triplet.usable_rps
        if left_rps <= ROUNDING * demand_rps:
            return


def is_small(triplet: Triplet) -> bool:
    """Return whether Allocation Optimisation may split into this triplet."""
    return triplet.size.gpcs <= SMALL_GPCS


def _fastest(
    kinds: Iterable[SegmentKind],
    known: Mapping[str, Size],
    usable_rps: Mapping[SegmentKind, float],
) -> tuple[Triplet, ...]:
    """Return the triplets of the most accurate variant among `kinds`, smallest first."""
    best: dict[int, SegmentKind] = {}

    def rank(kind: SegmentKind) -> tuple[float, int, float]:
        return kind.accuracy, -known[kind.profile].memory_slices, usable_rps[kind]

    for kind in kinds:
        gpcs = known[kind.profile].gpcs
        if usable_rps[kind] > 0 and (gpcs not in best or rank(kind) > rank(best[gpcs])):
            best[gpcs] = kind
    accuracy = max((kind.accuracy for kind in best.values()), default=0.0)
    return tuple(
        Triplet(best[gpcs], known[best[gpcs].profile], usable_rps[best[gpcs]])
        for gpcs in sorted(best)
        if best[gpcs].accuracy == accuracy
    )

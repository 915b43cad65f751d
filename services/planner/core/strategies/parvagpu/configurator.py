"""Segment Configurator (ParvaGPU, SC'24, section III-D, Algorithm 1): segments for each model.

A triplet is the fastest way to run a model on a given number of GPCs. Repaired:

- A point that ran out of memory is no candidate (the public code reads its latency, 0, as in time).
- The latency rule is the objective's `latency_share` (the code: 0.45 x SLO, cut to whole ms).
- A size without a triplet is skipped (the code compares the demand with a null pointer).
- A demand that the optimal segments meet exactly gets no last segment (Algorithm 1, line 20).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.mig import Geometry
from services.planner.core.model import Pool, Problem, SegmentKind
from services.planner.core.problem.latency_rule import admissible_rps


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a slice on a GPU.

    Attributes:
        start: First memory slice.
        mask: The memory slices it takes, one bit each.
    """

    start: int
    mask: int


@dataclass(frozen=True, slots=True)
class Size:
    """A slice kind as seen by the allocator.

    Attributes:
        profile: The kind's name.
        gpcs: Compute slices.
        memory_slices: Memory slices.
        spots: Its possible places, best first.
        thrifty: Those of `spots` that block fewest places of the smallest kind.
    """

    profile: str
    gpcs: int
    memory_slices: int
    spots: tuple[Spot, ...]
    thrifty: tuple[Spot, ...]


@lru_cache(maxsize=64)
def sizes(geometry: Geometry) -> Mapping[str, Size]:
    """Return the sizes of a geometry by name, each with its best places first (section III-E).

    The paper's preferences for the A100 (size 3 in slot 4, not 0; size 2 in slots 0 and 2, not 4;
    size 1 from slot 0) follow from one rule that holds for any geometry: a slice goes where it
    blocks fewest places of the smallest kind, then to the lowest start. Only starts that the driver
    allows count, so that no two segments ever overlap (the paper's slot 5 for size 2 does not
    exist).

    A kind that the driver allows fewer times than its places would hold (those with media engines)
    is left out: then free memory slices alone determine where a slice fits.
    """
    smallest = min(kind.memory_slices for kind in geometry.kinds)
    small_starts = {
        start for kind in geometry.kinds if kind.memory_slices == smallest for start in kind.starts
    }
    return {
        kind.name: _size(kind, small_starts)
        for kind in geometry.kinds
        if kind.max_count >= _most(kind)
    }


def _size(kind: SliceProfile, small_starts: set[int]) -> Size:
    blocked = {
        start: len(small_starts.intersection(range(start, start + kind.memory_slices)))
        for start in kind.starts
    }
    mask = (1 << kind.memory_slices) - 1
    spots = {
        start: Spot(start, mask << start)
        for start in sorted(kind.starts, key=lambda start: (blocked[start], start))
    }
    fewest = min(blocked.values())
    return Size(
        profile=kind.name,
        gpcs=kind.compute_slices,
        memory_slices=kind.memory_slices,
        spots=tuple(spots.values()),
        thrifty=tuple(spot for start, spot in spots.items() if blocked[start] == fewest),
    )


def _most(kind: SliceProfile) -> int:
    """Return the largest number of slices of one kind that do not overlap."""
    number, free_from = 0, 0
    for start in sorted(kind.starts):
        if start >= free_from:
            number, free_from = number + 1, start + kind.memory_slices
    return number


ROUNDING = 1e-9
"""Share of a demand that floating point may add or lose."""

SMALL_GPCS = 2
"""Allocation Optimisation splits into segments up to this size (section III-E)."""


@dataclass(frozen=True, slots=True, eq=False)
class Triplet:
    """The fastest segment of a model on a given number of GPCs.

    Attributes:
        kind: Slice, batch size and processes.
        size: The slice kind, with its places.
        usable_rps: Load that a plan may send to all its processes together, req/s.
    """

    kind: SegmentKind
    size: Size
    usable_rps: float

    @property
    def rps_per_gpc(self) -> float:
        """Usable load per GPC, req/s."""
        return self.usable_rps / self.size.gpcs


Choice = Mapping[str, Sequence[Triplet]]
"""A pool's triplets by model, smallest first; without models that it cannot serve in time."""


def triplets(problem: Problem) -> dict[Pool, Choice]:
    """Return the optimal triplets of every pool (Optimal Triplet Decision).

    ParvaGPU's models have one variant. Of several, a pool runs the most accurate that keeps the
    latency rule there. Of slice kinds with equal GPCs, a model gets the one with the least memory
    that it fits into. Clocks stay at their highest.
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

    The demand is filled with the triplet of the largest throughput per GPC; one of the smallest
    size that suffices serves the rest.

    Args:
        demand_rps: Demand, req/s.
        choice: A model's triplets, smallest first.
        most: Largest number of segments; keeps an excessive demand from exhausting memory.
    """
    best = max(choice, key=lambda triplet: triplet.rps_per_gpc)
    number = math.floor(demand_rps / best.usable_rps + ROUNDING)
    yield from [best] * min(number, most)
    left_rps = demand_rps - number * best.usable_rps
    if left_rps > ROUNDING * demand_rps:
        yield next(triplet for triplet in choice if triplet.usable_rps >= left_rps)


def split(demand_rps: float, choice: Sequence[Triplet]) -> Iterator[Triplet]:
    """Yield small segments for a demand (SMALLSEGMENTS); none where the model has no small triplet.

    The size that serves most per GPC comes first; it exceeds the demand only if no smaller one
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

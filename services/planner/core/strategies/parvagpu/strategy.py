"""ParvaGPU (SC'24) as a strategy: segments of MIG slices and MPS processes on fewest GPUs.

The Segment Configurator picks each model's segments, the Segment Allocator their GPUs; both modules
list their repairs. ParvaGPU ignores carbon and accuracy: of a model's variants it runs the most
accurate that is in time, and pursues no goal but fewest GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.grouping import summed
from services.planner.core.model import Configuration, Gpu, Pool, Problem, Segment, SegmentKind
from services.planner.core.problem import catalog
from services.planner.core.problem.pricing import most_gpcs
from services.planner.core.strategies.parvagpu.allocator import optimised, relocate
from services.planner.core.strategies.parvagpu.board import Board, Piece
from services.planner.core.strategies.parvagpu.configurator import (
    ROUNDING,
    Choice,
    Triplet,
    match,
    triplets,
)
from services.planner.core.strategies.parvagpu.overload import Overload


def parvagpu(problem: Problem) -> Configuration:
    """Match demand with optimal triplets, relocate and split them (ParvaGPU, Algorithms 1-2)."""
    return configuration(problem, allocate(problem))


def single(problem: Problem) -> Problem:
    """Return the problem with one process per segment, without MPS (ParvaGPU-single)."""
    kinds = catalog.build(
        problem.models, problem.pools, problem.objective, problem.batch_sizes, max_processes=1
    )
    return replace(problem, catalog=kinds)


def configuration(problem: Problem, allocation: Allocation) -> Configuration:
    """Return a map's segments, each with a load in proportion to its throughput."""
    segments = allocation.segments
    total_rps = summed((kind.model, n * kind.throughput_rps) for kind, n in segments.items())
    demand_rps = {model.name: model.demand_rps for model in problem.models}
    return Configuration(
        segments=segments,
        load_rps={
            kind: demand_rps[kind.model] * count * kind.throughput_rps / total_rps[kind.model]
            for kind, count in segments.items()
        },
    )


FAR_TOO_MUCH = 2
"""Factor on a pool's GPCs above which a load is not optimised into the pool."""


@dataclass(frozen=True, slots=True)
class GpuMap:
    """One GPU of the map.

    Attributes:
        gpu: The GPU.
        segments: Its segments by place, in order of start.
    """

    gpu: Gpu
    segments: Mapping[Placement, SegmentKind]


@dataclass(frozen=True, slots=True)
class Allocation:
    """A deployment map.

    Attributes:
        gpus: GPUs in use.
        unserved_rps: Demand that no segment serves, by model; only models with some.
    """

    gpus: tuple[GpuMap, ...]
    unserved_rps: Mapping[str, float]

    @property
    def segments(self) -> Counter[SegmentKind]:
        """Number of segments of each kind."""
        return Counter(kind for each in self.gpus for kind in each.segments.values())


def allocate(problem: Problem, *, optimise: bool = True) -> Allocation:
    """Return ParvaGPU's deployment map for a problem: the place of each segment (section III-E).

    The map is the heuristic's own. A plan need not follow it: MIG isolates slices, so that
    placement may find a map of the same segments with fewer GPUs or fewer changes.

    Pools are filled one after the other, the one with the largest throughput per GPU first. Models
    whose running segments are still right keep them where they are (section III-F); only where
    that leaves demand unserved, all are planned again.

    Args:
        problem: The problem. Its goals are ignored: the aim is the fewest GPUs.
        optimise: Whether Allocation Optimisation runs.
    """
    known = triplets(problem)
    stay = kept(problem, known)
    found = _allocate(problem, known, stay, optimise=optimise)
    if stay and found.unserved_rps:
        again = _allocate(problem, known, {}, optimise=optimise)
        found = min(found, again, key=lambda each: round(sum(each.unserved_rps.values()), 6))
    return found


def _allocate(
    problem: Problem, known: Mapping[Pool, Choice], stay: Kept, *, optimise: bool
) -> Allocation:
    settled = {piece.triplet.kind.model for pieces in stay.values() for piece in pieces}
    left_rps = {
        model.name: model.demand_rps
        for model in problem.models
        if model.demand_rps > 0 and model.name not in settled
    }
    maps: list[GpuMap] = []
    pools = sorted(known, key=lambda pool: -_speed(pool, known))
    for position, pool in enumerate(pools):
        gpus = [gpu for gpu in problem.gpus if gpu.pool == pool]
        gpus.sort(key=lambda gpu: gpu.uuid not in stay)
        later = {name for each in pools[position + 1 :] for name in known[each]}
        wanted = Overload(
            owned=len(gpus),
            demand_rps={n: rps for n, rps in left_rps.items() if rps > 0 and n in known[pool]},
            choice=known[pool],
            captive=frozenset(left_rps) - later,
        )
        board = _fill(
            pool, Board.of(stay.get(gpu.uuid, ()) for gpu in gpus), wanted, optimise=optimise
        )
        maps.extend(_maps(board, gpus))
        left_rps = {name: board.short_rps(name, left_rps) for name in left_rps}
    return Allocation(tuple(maps), {name: rps for name, rps in left_rps.items() if rps > 0})


def _fill(pool: Pool, fixed: Board, wanted: Overload, *, optimise: bool) -> Board:
    """Return the pool's map: all segments wanted, or as many as it has room for."""
    most = FAR_TOO_MUCH * wanted.owned * pool.type.geometry.memory_slices + 1
    demand_rps, choice = wanted.demand_rps, wanted.choice
    queue = [t for name, rps in demand_rps.items() for t in match(rps, choice[name], most)]
    maps: list[Board] = []
    gpu_gpcs = most_gpcs(pool.type.geometry)
    if sum(triplet.size.gpcs for triplet in queue) <= FAR_TOO_MUCH * wanted.owned * gpu_gpcs:
        board = Board.of(fixed.gpus)
        relocate(board, queue)
        if optimise:
            board = optimised(board, gpu_gpcs, demand_rps, choice)
        if len(board.gpus) <= wanted.owned:
            return board
        maps.append(wanted.cut(board))
    maps.append(wanted.crowd(fixed, queue))
    return max(maps, key=wanted.worth)


def _maps(board: Board, gpus: Sequence[Gpu]) -> Iterator[GpuMap]:
    for gpu, pieces in zip(gpus, board.gpus, strict=False):
        placed = sorted((Placement(p.triplet.size.profile, p.spot.start), p) for p in pieces)
        if placed:
            yield GpuMap(gpu, {where: piece.triplet.kind for where, piece in placed})


def _speed(pool: Pool, known: Mapping[Pool, Choice]) -> float:
    """Return the load that a GPU serves, summed over models; 1 for each that it serves fastest."""
    return sum(
        _gpu_rps(pool, choice) / max(_gpu_rps(o, c[name]) for o, c in known.items() if name in c)
        for name, choice in known[pool].items()
    )


def _gpu_rps(pool: Pool, choice: Sequence[Triplet]) -> float:
    return most_gpcs(pool.type.geometry) * max(triplet.rps_per_gpc for triplet in choice)


Kept = Mapping[str, Sequence[Piece]]
"""Segments that stay, by GPU."""


def kept(problem: Problem, known: Mapping[Pool, Choice]) -> Kept:
    """Return the running segments of the models that need no new plan (section III-F).

    A model needs one if its SLO or rate has changed so much that its segments are no longer right:
    one of them is not an optimal triplet, they serve less than the demand, or one of them is not
    needed. All of its segments stay, or none.
    """
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    demand_rps = {model.name: model.demand_rps for model in problem.models}
    running: dict[str, list[tuple[str, Piece | None]]] = {}
    for segment in problem.running:
        pool = pools.get(segment.gpu_uuid)
        piece = None if pool is None else _piece(segment, known[pool])
        running.setdefault(segment.kind.model, []).append((segment.gpu_uuid, piece))
    stay: dict[str, list[Piece]] = {}
    for model, placed in running.items():
        pieces = [piece for _, piece in placed if piece is not None]
        if len(pieces) == len(placed) and _right(demand_rps.get(model, 0.0), pieces):
            for (uuid, _), piece in zip(placed, pieces, strict=True):
                stay.setdefault(uuid, []).append(piece)
    return stay


def _piece(segment: Segment, choice: Choice) -> Piece | None:
    """Return a running segment as a Piece; None: it is not an optimal triplet."""
    runs = segment.kind
    for triplet in choice.get(runs.model, ()):
        best = triplet.kind
        if (best.variant, best.profile, best.batch_size, best.processes, best.clock_mhz) == (
            runs.variant,
            segment.placement.profile,
            runs.batch_size,
            runs.processes,
            runs.clock_mhz,
        ):
            for spot in triplet.size.spots:
                if spot.start == segment.placement.start:
                    return Piece(triplet, spot, fixed=True)
    return None


def _right(demand_rps: float, pieces: Sequence[Piece]) -> bool:
    total_rps = sum(piece.triplet.usable_rps for piece in pieces)
    least_rps = min(piece.triplet.usable_rps for piece in pieces)
    enough_rps = demand_rps * (1 - ROUNDING)
    return total_rps - least_rps < enough_rps <= total_rps

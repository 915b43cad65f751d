"""Packing of slices into layouts on a number of GPUs.

MIG isolates slices, so a set of slices is a count per kind; it fits if maximal layouts hold it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from services.kit.errors import InvalidArgument
from services.kit.mig import Geometry, Layout, maximal_layouts
from services.planner.core.model import Pool, Problem, SegmentKind
from services.planner.core.solver.milp import Goal, Program

TIME_LIMIT_S = 5.0
"""Far above the time that packing takes (milliseconds): it must not end without an answer."""


def gpus_needed(problem: Problem, segments: Mapping[SegmentKind, int]) -> dict[Pool, int] | None:
    """Return the fewest GPUs per pool that hold `segments`, or None if the fleet cannot.

    A GPU has one clock: segments of different clocks share none.
    """
    groups: dict[tuple[Pool, int], Counter[str]] = {}
    together: Counter[tuple[Pool, int]] = Counter()
    for kind, count in segments.items():
        if kind.gpus > 1:
            together[kind.pool, kind.gpus] += count
        else:
            groups.setdefault((kind.pool, kind.clock_mhz), Counter())[kind.profile] += count
    if not all(problem.groups(pool, gpus) >= n for (pool, gpus), n in nested(together).items()):
        return None
    owned = problem.pools
    needed: dict[Pool, int] = {}
    for (pool, gpus), count in together.items():
        needed[pool] = needed.get(pool, 0) + gpus * count
    for (pool, _), slices in groups.items():
        layouts = pack(pool.type.geometry, frozenset((+slices).items()))
        needed[pool] = needed.get(pool, 0) + sum(count for _, count in layouts)
        if needed[pool] > owned[pool]:
            return None
    return needed if all(needed[pool] <= owned[pool] for pool in needed) else None


def nested(together: Mapping[tuple[Pool, int], int]) -> dict[tuple[Pool, int], int]:
    """Return the groups of each size, those inside larger ones included, that segments take.

    Nodes hold segments of several GPUs if, for each size, they have as many groups: each size
    divides the next (`services.kit.mig.GPUS_TOGETHER`), so that the largest first wastes none.
    """
    return {
        (pool, gpus): sum(
            count * (size // gpus)
            for (where, size), count in together.items()
            if where == pool and size >= gpus
        )
        for pool, gpus in together
    }


@lru_cache(maxsize=65536)
def pack(geometry: Geometry, slices: frozenset[tuple[str, int]]) -> tuple[tuple[Layout, int], ...]:
    """Return the fewest layouts that hold a set of slices.

    Args:
        geometry: Layouts of one GPU.
        slices: Slice kinds with their counts, > 0.

    Returns:
        Layouts with their number of GPUs, in order of layout.

    Raises:
        InvalidArgument: The geometry lacks one of the slice kinds.
    """
    greedy = _greedy(geometry, slices)
    if greedy and sum(count for _, count in greedy) <= _at_least(geometry, slices):
        return greedy
    program = Program()
    layouts = maximal_layouts(geometry)
    counts = [Counter(placement.profile for placement in layout) for layout in layouts]
    columns = [program.column(integer=True) for _ in layouts]
    for name, wanted in slices:
        holds = (
            (column, float(count[name])) for column, count in zip(columns, counts, strict=True)
        )
        program.row((term for term in holds if term[1]), low=float(wanted))
    found = program.minimise([Goal(dict.fromkeys(columns, 1.0))], time_limit_s=TIME_LIMIT_S)
    if found is None:
        raise InvalidArgument(f"no GPU has all of {sorted(name for name, _ in slices)}")
    chosen = (
        (layout, found.count(column)) for layout, column in zip(layouts, columns, strict=True)
    )
    return tuple((layout, count) for layout, count in chosen if count)


def _at_least(geometry: Geometry, slices: frozenset[tuple[str, int]]) -> int:
    """Return a lower bound of the number of GPUs."""
    kinds = [(geometry.kind(name), wanted) for name, wanted in slices]
    memory = sum(kind.memory_slices * wanted for kind, wanted in kinds)
    per_kind = (math.ceil(wanted / kind.max_count) for kind, wanted in kinds)
    return max(math.ceil(memory / geometry.memory_slices), *per_kind, 0)


def _greedy(
    geometry: Geometry, slices: frozenset[tuple[str, int]]
) -> tuple[tuple[Layout, int], ...]:
    """Return layouts, each chosen to hold most memory in the largest slices; empty: impossible.

    Searches call this thousands of times; it nearly always meets the lower bound.
    """
    counted, sizes = _counted(geometry), _sizes(geometry)

    def size(option: tuple[Layout, Mapping[str, int]]) -> tuple[int, int]:
        held = [(sizes[name], n) for name, n in option[1].items()]
        return sum(span * n for (span, _), n in held), sum(area * n for (_, area), n in held)

    left = dict(slices)
    chosen: Counter[Layout] = Counter()
    while left:
        layout, held = max(((layout, _held(counts, left)) for layout, counts in counted), key=size)
        if not held:
            return ()
        times = min(left[name] // n for name, n in held.items())
        chosen[layout] += times
        left = {name: n for name, had in left.items() if (n := had - times * held.get(name, 0))}
    return tuple(sorted(chosen.items()))


def _held(counts: Mapping[str, int], left: Mapping[str, int]) -> dict[str, int]:
    return {name: min(n, left[name]) for name, n in counts.items() if name in left}


@lru_cache(maxsize=64)
def _counted(geometry: Geometry) -> tuple[tuple[Layout, Mapping[str, int]], ...]:
    layouts = maximal_layouts(geometry)
    return tuple((layout, dict(Counter(each.profile for each in layout))) for layout in layouts)


@lru_cache(maxsize=64)
def _sizes(geometry: Geometry) -> dict[str, tuple[int, int]]:
    return {
        kind.name: (kind.memory_slices, kind.memory_slices * kind.compute_slices)
        for kind in geometry.kinds
    }

"""Do these slices fit on so many GPUs, and into which layouts?

MIG isolates slices, so a set of slices is a count per kind; it fits where maximal layouts hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from services.kit.errors import InvalidArgument
from services.kit.mig import Geometry, Layout, maximal_layouts
from services.planner.domain import Pool, Problem, SegmentKind
from services.planner.milp import Program

TIME_LIMIT_S = 5.0
"""Far above what packing takes (milliseconds); packing has no way to answer 'perhaps'."""


def gpus_needed(problem: Problem, segments: Mapping[SegmentKind, int]) -> dict[Pool, int] | None:
    """Return the fewest GPUs per pool that hold `segments`, or None if the fleet cannot."""
    counts: dict[Pool, Counter[str]] = {}
    for kind, count in segments.items():
        counts.setdefault(kind.pool, Counter())[kind.profile] += count
    owned = problem.pools
    needed: dict[Pool, int] = {}
    for pool, slices in counts.items():
        layouts = pack(pool.type.geometry, frozenset((+slices).items()))
        needed[pool] = sum(count for _, count in layouts)
        if needed[pool] > owned[pool]:
            return None
    return needed


@lru_cache(maxsize=65536)
def pack(geometry: Geometry, slices: frozenset[tuple[str, int]]) -> tuple[tuple[Layout, int], ...]:
    """Return the fewest layouts that hold a set of slices.

    Args:
        geometry: What one GPU can be cut into.
        slices: Slice kinds with their counts, > 0.

    Returns:
        Layouts with the number of GPUs that take them, in order of layout.

    Raises:
        InvalidArgument: The geometry lacks one of the slice kinds.
    """
    program = Program()
    layouts = maximal_layouts(geometry)
    counts = [Counter(placement.profile for placement in layout) for layout in layouts]
    columns = [program.column(integer=True) for _ in layouts]
    for name, wanted in slices:
        holds = (
            (column, float(count[name])) for column, count in zip(columns, counts, strict=True)
        )
        program.row((term for term in holds if term[1]), low=float(wanted))
    found = program.minimise([dict.fromkeys(columns, 1.0)], time_limit_s=TIME_LIMIT_S)
    if found is None:
        raise InvalidArgument(f"no GPU has all of {sorted(name for name, _ in slices)}")
    chosen = (
        (layout, found.count(column)) for layout, column in zip(layouts, columns, strict=True)
    )
    return tuple((layout, count) for layout, count in chosen if count)

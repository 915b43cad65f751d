"""Rows of the fleet, in the program of `exact`: slices of layouts, clocks, GPUs of one node."""

from collections.abc import Mapping, Sequence

from services.kit.mig import maximal_layouts
from services.planner.core.model import Pool, Problem, SegmentKind
from services.planner.core.solver.milp import Numbers, Program
from services.planner.core.strategies.columns import distinct


def add_gpus(
    program: Program, problem: Problem, kinds: Sequence[SegmentKind], counts: Numbers
) -> Mapping[tuple[Pool, int], Numbers]:
    """Limit segments by the slices of GPUs; each GPU has one layout and one clock.

    Args:
        program: The program.
        problem: Its fleet counts.
        kinds: Segment kinds.
        counts: Columns with the number of their segments.

    Returns:
        Columns that count GPUs in each maximal layout, by pool and clock.
    """
    single = [index for index, kind in enumerate(kinds) if kind.gpus == 1]
    groups, at = distinct(
        (kind.pool, kind.clock_mhz, kind.profile) for kind in kinds if kind.gpus == 1
    )
    slices = program.rows(len(groups), high=0.0)
    program.terms(slices[at], counts[single], 1.0)
    rows = dict(zip(groups, slices, strict=True))
    fleet: dict[Pool, Numbers] = {}
    found: dict[tuple[Pool, int], Numbers] = {}
    for pool, clock_mhz in dict.fromkeys(group[:2] for group in groups):
        owned = problem.pools[pool]
        layouts = maximal_layouts(pool.type.geometry)
        columns = found[pool, clock_mhz] = program.columns(len(layouts), upper=owned, integer=True)
        if pool not in fleet:
            fleet[pool] = program.rows(1, high=owned)
        program.terms(fleet[pool], columns, 1.0)
        for column, layout in zip(columns, layouts, strict=True):
            places = ((pool, clock_mhz, placement.profile) for placement in layout)
            program.terms([rows[each] for each in places if each in rows], column, -1.0)
    _add_groups(program, problem, kinds, counts, fleet)
    return found


def _add_groups(
    program: Program,
    problem: Problem,
    kinds: Sequence[SegmentKind],
    counts: Numbers,
    fleet: dict[Pool, Numbers],
) -> None:
    """Limit segments of several GPUs by the nodes, and let each take its GPUs."""
    limits: dict[tuple[Pool, int], int] = {}
    several = [(kind, int(n)) for kind, n in zip(kinds, counts, strict=True) if kind.gpus > 1]
    for kind, column in several:
        pool, gpus = kind.pool, kind.gpus
        if pool not in fleet:
            fleet[pool] = program.rows(1, high=problem.pools[pool])
        program.terms(fleet[pool], column, gpus)
        if (pool, gpus) not in limits:
            limits[pool, gpus] = int(program.rows(1, high=problem.groups(pool, gpus))[0])
    for kind, column in several:
        for (pool, gpus), limit in limits.items():
            if pool == kind.pool and gpus <= kind.gpus:
                program.terms(limit, column, kind.gpus // gpus)

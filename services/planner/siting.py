"""Which GPU takes which layout, so that least changes.

GPUs in the same state (slices, and what runs on them) are interchangeable, which keeps the program
small: a count per state and layout. Of all ways to hold the segments it takes those that lose the
fewest running ones, of these the ones that create the fewest slices, and of these one that pushes
the fewest running segments aside before their successors run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from services.kit.errors import FailedPrecondition
from services.kit.mig import Geometry, Layout, Placement, layouts
from services.planner.domain import Gpu, Pool, SegmentKind
from services.planner.milp import Program, Terms
from services.planner.pricing import Row, row

TIME_LIMIT_S = 5.0

Running = Mapping[str, Mapping[Placement, Row]]
"""What runs where: by GPU uuid and placement."""


@dataclass(frozen=True, slots=True)
class _State:
    """What makes GPUs of one pool interchangeable."""

    slices: frozenset[Placement]
    running: frozenset[tuple[Placement, Row]]


@dataclass(frozen=True, slots=True)
class _Option:
    """A layout for a GPU in some state.

    Attributes:
        layout: Its slices.
        slices: How many of each kind.
        existing: How many of them exist.
        kept: How many running segments of each row it leaves in place.
        pushed: How many running segments lie across its slices.
    """

    layout: Layout
    slices: Counter[str]
    existing: Counter[str]
    kept: Counter[Row]
    pushed: int

    @classmethod
    def of(cls, layout: Layout, state: _State) -> _Option:
        """Say what `layout` would keep of `state`."""
        return cls(
            layout,
            slices=Counter(placement.profile for placement in layout),
            existing=Counter(place.profile for place in layout if place in state.slices),
            kept=Counter(what for where, what in state.running if where in layout),
            pushed=sum(where not in layout for where, _ in state.running),
        )

    @property
    def effect(self) -> tuple[object, ...]:
        """What tells two options apart for the program."""
        counts = (self.slices, self.existing, self.kept)
        return (*(frozenset(each.items()) for each in counts), self.pushed)


def choose_layouts(
    gpus: Iterable[Gpu], running: Running, wanted: Mapping[SegmentKind, int], *, most_gpus: int
) -> dict[str, Layout]:
    """Return layouts that together hold `wanted`, by GPU uuid; GPUs left out stay unused.

    Args:
        gpus: All of one pool.
        running: What runs on them.
        wanted: Segments to place, with their counts.
        most_gpus: GPUs that may be used.

    Raises:
        FailedPrecondition: `most_gpus` cannot hold `wanted`.
    """
    program = Program()
    options: dict[int, _Option] = {}
    groups: list[tuple[list[Gpu], list[int]]] = []
    for state, alike in _states(gpus, running).items():
        columns = {program.column(integer=True): each for each in _options(alike[0].pool, state)}
        program.row([(column, 1.0) for column in columns], high=float(len(alike)))
        groups.append((alike, list(columns)))
        options |= columns
    program.row([(column, 1.0) for column in options], high=float(most_gpus))
    pushed = {column: float(option.pushed) for column, option in options.items() if option.pushed}
    goals = [_lost(program, options, wanted), _created(program, options, wanted), pushed]
    goals = [goal for goal in goals if goal]
    solution = program.minimise(goals, time_limit_s=TIME_LIMIT_S)
    if solution is None:
        raise FailedPrecondition(f"no {most_gpus} GPUs hold the plan's slices")
    chosen: dict[str, Layout] = {}
    for alike, column_list in groups:
        taken = [options[c].layout for c in column_list for _ in range(solution.count(c))]
        chosen |= {gpu.uuid: layout for gpu, layout in zip(alike, taken, strict=False)}
    return chosen


def _states(gpus: Iterable[Gpu], running: Running) -> dict[_State, list[Gpu]]:
    states: dict[_State, list[Gpu]] = {}
    for gpu in gpus:
        state = _State(frozenset(gpu.slices), frozenset(running.get(gpu.uuid, {}).items()))
        states.setdefault(state, []).append(gpu)
    return states


def _options(pool: Pool, state: _State) -> list[_Option]:
    distinct: dict[object, _Option] = {}
    for layout in _full_layouts(pool.type.geometry):
        option = _Option.of(layout, state)
        distinct.setdefault(option.effect, option)
    return list(distinct.values())


@lru_cache(maxsize=64)
def _full_layouts(geometry: Geometry) -> tuple[Layout, ...]:
    """Return the layouts to which no slice can be added, positions told apart."""
    found = {frozenset(layout): layout for layout in layouts(geometry)}
    return tuple(
        layout for slices, layout in found.items() if not any(slices < other for other in found)
    )


def _lost(
    program: Program, options: Mapping[int, _Option], wanted: Mapping[SegmentKind, int]
) -> Terms:
    """Count running segments that could stay but do not."""
    terms = {}
    rows = Counter(what for option in options.values() for what in option.kept)
    for kind, count in wanted.items():
        if row(kind) in rows:
            lost = program.column()
            keeps = ((column, option.kept[row(kind)]) for column, option in options.items())
            terms[lost] = 1.0
            program.row(
                [(lost, 1.0), *((column, float(n)) for column, n in keeps if n)], low=float(count)
            )
    return terms


def _created(
    program: Program, options: Mapping[int, _Option], wanted: Mapping[SegmentKind, int]
) -> Terms:
    """Count slices to create, having demanded that there are enough."""
    terms = {}
    needed: Counter[str] = Counter()
    for kind, count in wanted.items():
        needed[kind.profile] += count
    for profile, count in needed.items():
        held = ((column, option.slices[profile]) for column, option in options.items())
        program.row([(column, float(n)) for column, n in held if n], low=float(count))
        created = program.column()
        terms[created] = 1.0
        exist = ((column, option.existing[profile]) for column, option in options.items())
        program.row(
            [(created, 1.0), *((column, float(n)) for column, n in exist if n)], low=float(count)
        )
    return terms

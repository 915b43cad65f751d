"""Assignment of layouts and clocks to GPUs with the fewest changes.

GPUs in the same state (slices, clock, and segments on them) are interchangeable, which keeps the
program small: a count per state, layout and clock. Its goals, in order, are to hold the segments
    and
lose the fewest running ones, create the fewest slices, displace the fewest running segments before
their successors run, and change the fewest clocks.

If GPUs are in more than MANY_STATES states, those whose segments are all still wanted keep their
layout and clock, as long as the others have room for the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.errors import FailedPrecondition
from services.kit.grouping import grouped
from services.kit.mig import Geometry, Layout, full_layouts
from services.planner.core.model import Gpu, SegmentKind
from services.planner.core.problem.pricing import Row, row
from services.planner.core.solver.milp import Goal, Program, Terms

TIME_LIMIT_S = 5.0

MANY_STATES = 32
"""States of GPUs up to which all of them may change: the optimum is then found at once."""

NODES = 100
"""Nodes of the search tree after which the best layouts are accepted, for GPUs in more states."""

WIDER = 0.5
"""Share of further GPUs that may change, if the others have no room."""

Running = Mapping[str, Mapping[Placement, Row]]
"""Rows of running segments by GPU UUID and placement."""


LayoutAtClock = tuple[Layout, int]
"""New slices of a GPU, and its SM clock in MHz (0: not lowered)."""


@dataclass(frozen=True, slots=True)
class _State:
    """State in which GPUs of one pool are interchangeable."""

    slices: frozenset[Placement]
    running: frozenset[tuple[Placement, Row]]
    clock_mhz: int


@dataclass(frozen=True, slots=True)
class _Option:
    """A layout and a clock for a GPU in some state.

    Attributes:
        site: The layout and the clock.
        slices: Number of slices of each kind.
        existing: Number of them that exist.
        kept: Number of running segments of each row that stay in place.
        pushed: Number of running segments that overlap its slices.
        reclocked: Whether the GPU's clock changes.
    """

    site: LayoutAtClock
    slices: Counter[str]
    existing: Counter[str]
    kept: Counter[Row]
    pushed: int
    reclocked: bool

    @classmethod
    def of(cls, site: LayoutAtClock, state: _State) -> _Option:
        """Return the option of `site` for GPUs in `state`."""
        layout, clock_mhz = site
        return cls(
            site,
            slices=_slices(layout),
            existing=Counter(place.profile for place in layout if place in state.slices),
            kept=Counter(what for where, what in state.running if where in layout),
            pushed=sum(where not in layout for where, _ in state.running),
            reclocked=clock_mhz != state.clock_mhz,
        )

    @property
    def effect(self) -> tuple[object, ...]:
        """Properties that distinguish two options in the program."""
        counts = (self.slices, self.existing, self.kept)
        return (*(frozenset(each.items()) for each in counts), self.pushed, self.site[1])


@lru_cache(maxsize=4096)
def _slices(layout: Layout) -> Counter[str]:
    return Counter(placement.profile for placement in layout)


Options = Mapping[int, _Option]
"""Options by column, which counts GPUs."""


def assign_layouts(
    gpus: Iterable[Gpu], running: Running, wanted: Mapping[SegmentKind, int], *, most_gpus: int
) -> dict[str, LayoutAtClock]:
    """Return layouts and clocks that together hold `wanted`, by GPU UUID.

    GPUs without an entry stay unused.

    Args:
        gpus: All GPUs of one pool.
        running: Segments that run on them.
        wanted: Segments to place, with their counts.
        most_gpus: GPUs that may be used.

    Raises:
        FailedPrecondition: `most_gpus` cannot hold `wanted`.
    """
    states = _states(gpus, running)
    every = {gpu.uuid for alike in states.values() for gpu in alike}
    few = len(states) <= MANY_STATES
    changing = every if few else _with_excess(states, wanted)
    while True:
        found = _assigned(states, changing, wanted, most_gpus, nodes=0 if few else NODES)
        if found is not None:
            return found
        if len(changing) == len(every):
            raise FailedPrecondition(f"no {most_gpus} GPUs hold the plan's slices")
        changing = _widened(states, changing)


def _with_excess(
    states: Mapping[_State, Sequence[Gpu]], wanted: Mapping[SegmentKind, int]
) -> set[str]:
    """Return the UUIDs of GPUs without segments, and of some whose segments are all in excess."""
    here = {
        state: Counter((what, state.clock_mhz) for _, what in state.running) for state in states
    }
    excess: Counter[tuple[Row, int]] = Counter()
    for state, alike in states.items():
        excess.update({what: count * len(alike) for what, count in here[state].items()})
    excess.subtract({(row(kind), kind.clock_mhz): count for kind, count in wanted.items()})
    excess = +excess
    found = {gpu.uuid for state, alike in states.items() if not state.running for gpu in alike}
    for state in sorted(states, key=lambda state: -(here[state] & excess).total()):
        for gpu in states[state]:
            if not here[state] & excess:
                break
            excess -= here[state]
            found.add(gpu.uuid)
    return found


def _widened(states: Mapping[_State, Sequence[Gpu]], changing: set[str]) -> set[str]:
    """Return `changing` and some of the GPUs with segments, the emptiest first."""
    used = [(state, alike) for state, alike in states.items() if state.running]
    used.sort(key=lambda each: _compute_slices(each[0], each[1][0].pool.type.geometry))
    others = [gpu.uuid for _, alike in used for gpu in alike if gpu.uuid not in changing]
    busy = sum(len(alike) for _, alike in used) - len(others)
    return changing | set(others[: max(MANY_STATES, round(WIDER * busy))])


def _compute_slices(state: _State, geometry: Geometry) -> int:
    return sum(geometry.kind(placement.profile).compute_slices for placement, _ in state.running)


def _assigned(
    states: Mapping[_State, Sequence[Gpu]],
    changing: Container[str],
    wanted: Mapping[SegmentKind, int],
    most_gpus: int,
    nodes: int,
) -> dict[str, LayoutAtClock] | None:
    """Return layouts and clocks by GPU UUID; None: there are none. Other GPUs stay.

    Args:
        states: All GPUs, by state.
        changing: UUIDs of the GPUs that may change.
        wanted: Segments to place, with their counts.
        most_gpus: GPUs that may be used.
        nodes: Nodes of each goal's search tree after which the best answer is accepted; 0: optimum.
    """
    program = Program()
    options: dict[int, _Option] = {}
    groups: list[tuple[list[Gpu], list[int]]] = []
    clocks = sorted({kind.clock_mhz for kind in wanted})
    for state, alike in states.items():
        moving = [gpu for gpu in alike if gpu.uuid in changing]
        staying = [gpu for gpu in alike if gpu.uuid not in changing]
        every = _options(alike[0], state, clocks) if moving else []
        same = [_unchanged(alike[0], state)] if staying else []
        for some, choice, least in ((moving, every, 0), (staying, same, len(staying))):
            if some:
                columns = {program.column(integer=True): each for each in choice}
                program.row(dict.fromkeys(columns, 1.0).items(), low=least, high=len(some))
                groups.append((some, list(columns)))
                options |= columns
    program.row(dict.fromkeys(options, 1.0).items(), high=most_gpus)
    goals = (
        _lost(program, options, wanted),
        _created(program, options, wanted),
        {column: float(option.pushed) for column, option in options.items() if option.pushed},
        {column: 1.0 for column, option in options.items() if option.reclocked},
    )
    searched = [Goal(terms, nodes=nodes) for terms in goals if terms]
    solution = program.minimise(searched, time_limit_s=TIME_LIMIT_S)
    if solution is None:
        return None
    chosen: dict[str, LayoutAtClock] = {}
    for alike, column_list in groups:
        taken = [options[c].site for c in column_list for _ in range(solution.count(c))]
        chosen |= {gpu.uuid: site for gpu, site in zip(alike, taken, strict=False)}
    return chosen


def _states(gpus: Iterable[Gpu], running: Running) -> dict[_State, list[Gpu]]:
    def state(gpu: Gpu) -> _State:
        runs = frozenset(running.get(gpu.uuid, {}).items())
        return _State(frozenset(gpu.slices), runs, gpu.clock_mhz)

    return grouped((state(gpu), gpu) for gpu in gpus)


def _unchanged(gpu: Gpu, state: _State) -> _Option:
    """Return the option that keeps every running segment and most slices in place."""
    places = {placement for placement, _ in state.running}
    layouts = full_layouts(gpu.pool.type.geometry)
    fitting = (layout for layout in layouts if places.issubset(layout))
    layout = max(fitting, key=lambda layout: len(state.slices.intersection(layout)))
    return _Option.of((layout, state.clock_mhz), state)


def _options(gpu: Gpu, state: _State, clocks: Iterable[int]) -> list[_Option]:
    distinct: dict[object, _Option] = {}
    for site in product(full_layouts(gpu.pool.type.geometry), clocks):
        option = _Option.of(site, state)
        distinct.setdefault(option.effect, option)
    return list(distinct.values())


def _lost(program: Program, options: Options, wanted: Mapping[SegmentKind, int]) -> Terms:
    """Count running segments that could stay but do not."""
    keeps: dict[tuple[Row, int], dict[int, float]] = {}
    for column, option in options.items():
        for what, count in option.kept.items():
            keeps.setdefault((what, option.site[1]), {})[column] = float(count)
    stays = ((keeps.get((row(kind), kind.clock_mhz)), count) for kind, count in wanted.items())
    return _count_missing(program, ((kept, count) for kept, count in stays if kept))


def _created(program: Program, options: Options, wanted: Mapping[SegmentKind, int]) -> Terms:
    """Count slices to create, and require that there are enough."""
    needed: Counter[tuple[str, int]] = Counter()
    for kind, count in wanted.items():
        needed[kind.profile, kind.clock_mhz] += count
    held: dict[tuple[str, int], dict[int, float]] = {key: {} for key in needed}
    exist: dict[tuple[str, int], dict[int, float]] = {key: {} for key in needed}
    for column, option in options.items():
        for profile, count in option.slices.items():
            held.setdefault((profile, option.site[1]), {})[column] = float(count)
        for profile, count in option.existing.items():
            exist.setdefault((profile, option.site[1]), {})[column] = float(count)
    for key, count in needed.items():
        program.row(held[key].items(), low=count)
    return _count_missing(program, ((exist[key], count) for key, count in needed.items()))


def _count_missing(program: Program, counted: Iterable[tuple[Terms, int]]) -> Terms:
    """Return columns that count the shortfall of each sum."""
    missing = {}
    for terms, number in counted:
        column = program.column()
        missing[column] = 1.0
        program.row([(column, 1.0), *terms.items()], low=number)
    return missing

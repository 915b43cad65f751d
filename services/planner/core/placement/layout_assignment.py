"""Assignment of layouts and clocks to GPUs with the fewest changes.

GPUs in the same state (slices, clock, and segments on them) are interchangeable, which keeps the
program small: a count per state, layout and clock. Its goals, in order, are to hold the segments,
keep those of separated models apart, lose the fewest running ones, create the fewest slices,
displace the fewest running segments before their successors run, and change the fewest clocks.

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
from services.planner.core.placement.separation import Quotas, Separation
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
    """State in which GPUs of one pool are interchangeable. Attributes: domain (UUID or node)."""

    slices: frozenset[Placement]
    running: frozenset[tuple[Placement, Row]]
    clock_mhz: int
    domain: str = ""


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
    gpus: Iterable[Gpu],
    running: Running,
    wanted: Mapping[SegmentKind, int],
    separation: Separation,
    *,
    most_gpus: int,
) -> tuple[dict[str, LayoutAtClock], Quotas]:
    """Return layouts and clocks that together hold `wanted`, by GPU UUID, and quotas.

    GPUs without an entry stay unused.

    Args:
        gpus: All GPUs of one pool.
        running: Segments that run on them.
        wanted: Segments to place, with their counts.
        separation: Models whose segments are to be apart.
        most_gpus: GPUs that may be used, unless separation takes more.

    Raises:
        FailedPrecondition: `most_gpus` cannot hold `wanted`.
    """
    owned = {gpu.uuid: gpu for gpu in gpus}
    apart = [kind for kind in wanted if kind.model in separation.models]
    each = bool(apart) and len(owned) <= MANY_STATES
    least = min(len(owned), separation.least_gpus(wanted))
    gpus_used = _Gpus(least, max(most_gpus, least), len(owned) if each else 0)
    ordered = _by_turns(owned.values()) if apart and not each else owned.values()
    states = _states(ordered, running, separation.by_gpu if each else None)
    few = len(states) <= MANY_STATES
    changing = set(owned) if few else _with_excess(states, wanted)
    while True:
        kinds = separation if each else None
        found = _assigned(states, changing, wanted, gpus_used, kinds, nodes=0 if few else NODES)
        if found is not None:
            break
        if len(changing) == len(owned):
            raise FailedPrecondition(f"no {most_gpus} GPUs hold the plan's slices")
        changing = _widened(states, changing)
    sites, quotas = found
    if apart and not each:
        quotas = separation.balanced(sites, owned, running, {kind: wanted[kind] for kind in apart})
    separation.record(quotas, owned)
    return sites, quotas


@dataclass(frozen=True, slots=True)
class _Gpus:
    """Number of GPUs to use: least, most, and most where segments must be apart."""

    least: int
    most: int
    separated: int


def _by_turns(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return GPUs with those of one node far from one another."""
    nodes = grouped((gpu.node, gpu) for gpu in gpus)
    turns = ((at, gpu) for group in nodes.values() for at, gpu in enumerate(group))
    return [gpu for _, gpu in sorted(turns, key=lambda each: each[0])]


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


def _assigned(  # noqa: PLR0913, PLR0917  # the dimensions of the program
    states: Mapping[_State, Sequence[Gpu]],
    changing: Container[str],
    wanted: Mapping[SegmentKind, int],
    gpus_used: _Gpus,
    separation: Separation | None,
    nodes: int,
) -> tuple[dict[str, LayoutAtClock], Quotas] | None:
    """Return layouts and clocks by GPU UUID, and quotas; None: there are none. Other GPUs stay.

    Args:
        states: All GPUs, by state.
        changing: UUIDs of the GPUs that may change.
        wanted: Segments to place, with their counts.
        gpus_used: GPUs that may be used.
        separation: Models with a quota for each group of GPUs; None: there are none.
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
    more = program.column(upper=max(0, gpus_used.separated - gpus_used.most))
    used = dict.fromkeys(options, 1.0)
    program.row(used.items(), low=gpus_used.least)
    program.row((used | {more: -1.0}).items(), high=gpus_used.most)
    held = _held(program, options, groups, wanted, separation)
    goals = (
        separation.add_rows(program, held, (some[0] for some, _ in groups)) if separation else {},
        {more: 1.0} if separation else {},
        _lost(program, options, groups, wanted, held),
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
    counts = {key: solution.count(column) for key, column in held.items()}
    return chosen, _quotas(groups, chosen, counts)


def _held(
    program: Program,
    options: Options,
    groups: Iterable[tuple[Sequence[Gpu], Sequence[int]]],
    wanted: Mapping[SegmentKind, int],
    separation: Separation | None,
) -> dict[tuple[SegmentKind, str], int]:
    """Add columns for the segments of separated models on each group of GPUs; return them.

    By kind and the UUID of the group's first GPU.
    """
    held: dict[tuple[SegmentKind, str], int] = {}
    kinds = [kind for kind in wanted if separation and kind.model in separation.models]
    for some, columns in groups:
        by_slot = grouped(((kind.profile, kind.clock_mhz), kind) for kind in kinds)
        for (profile, clock_mhz), group in by_slot.items():
            added = {kind: program.column(integer=True) for kind in group}
            slots = (
                (at, -float(options[at].slices[profile]))
                for at in columns
                if options[at].site[1] == clock_mhz and options[at].slices[profile]
            )
            program.row([*((at, 1.0) for at in added.values()), *slots], high=0.0)
            held |= {(kind, some[0].uuid): at for kind, at in added.items()}
    for kind in kinds:
        total = ((at, 1.0) for (each, _), at in held.items() if each == kind)
        program.row(total, low=wanted[kind], high=wanted[kind])
    return held


def _quotas(
    groups: Iterable[tuple[Sequence[Gpu], Sequence[int]]],
    chosen: Mapping[str, LayoutAtClock],
    counts: Mapping[tuple[SegmentKind, str], int],
) -> Quotas:
    """Return the quota of each GPU; those of a group share one, as far as their slices go."""
    quotas: dict[str, Counter[SegmentKind]] = {}
    for some, _ in groups:
        room = {gpu.uuid: _slices(chosen[gpu.uuid][0]).copy() for gpu in some if gpu.uuid in chosen}
        for (kind, uuid), count in counts.items():
            left = count if uuid == some[0].uuid else 0
            for each, slots in room.items():
                if chosen[each][1] == kind.clock_mhz and left > 0:
                    taken = min(left, slots[kind.profile])
                    slots[kind.profile] -= taken
                    quotas.setdefault(each, Counter())[kind] += taken
                    left -= taken
    return quotas


def _states(gpus: Iterable[Gpu], running: Running, by_gpu: bool | None) -> dict[_State, list[Gpu]]:
    """Return the GPUs by state; domains are apart if `by_gpu` says whether these are GPUs."""

    def state(gpu: Gpu) -> _State:
        runs = frozenset(running.get(gpu.uuid, {}).items())
        domain = "" if by_gpu is None else gpu.uuid if by_gpu else gpu.node
        return _State(frozenset(gpu.slices), runs, gpu.clock_mhz, domain)

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


def _lost(
    program: Program,
    options: Options,
    groups: Iterable[tuple[Sequence[Gpu], Sequence[int]]],
    wanted: Mapping[SegmentKind, int],
    held: Mapping[tuple[SegmentKind, str], int],
) -> Terms:
    """Count running segments that could stay but do not.

    Of a separated model, a group of GPUs keeps no more than its quota.
    """
    clocked = {kind: (row(kind), kind.clock_mhz) for kind in wanted}
    limited = {clocked[kind] for kind, _ in held}
    keeps: dict[tuple[Row, int], dict[int, float]] = {}
    for column, option in options.items():
        for what, count in option.kept.items():
            if (what, option.site[1]) not in limited:
                keeps.setdefault((what, option.site[1]), {})[column] = float(count)
    for some, columns in groups:
        for kind in dict.fromkeys(kind for kind, uuid in held if uuid == some[0].uuid):
            what, clock_mhz = clocked[kind]
            stays = {
                at: -float(options[at].kept[what])
                for at in columns
                if options[at].site[1] == clock_mhz and options[at].kept[what]
            }
            if stays:
                kept = program.column()
                program.row([(kept, 1.0), (held[kind, some[0].uuid], -1.0)], high=0.0)
                program.row([(kept, 1.0), *stays.items()], high=0.0)
                keeps.setdefault(clocked[kind], {})[kept] = 1.0
    counted = ((keeps.get(clocked[kind]), count) for kind, count in wanted.items())
    return _count_missing(program, ((kept, count) for kept, count in counted if kept))


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

"""The exact strategy: a mixed-integer program with CLOVER's objective, solved by HiGHS.

Variables, per segment kind s, pool p, maximal layout c and model m:

    n_s  segments (integer)             x_s  load, as a share of the model's demand
    y_pc GPUs in layout c (integer)     u_m  share of the demand that is not served
    v_m  accuracy short of the floor    d_s, q_pk  segments to start, slices to create

    x_s * demand <= rho * throughput_s * n_s          sum_s x_s + u_m = 1
    sum_s n_s <= sum_c count(c, k) * y_pc             sum_c y_pc <= N_p
    sum_s x_s * shortfall_s <= v_m                    d_s >= n_s - running, q_pk >= n_k - existing

Goals, one after the other: least unserved load, least accuracy below the floor, largest f less the
price of reconfiguration. u and v make every input feasible, so overload degrades and never fails.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.kit.mig import maximal_layouts
from services.planner.catalog import in_time, pareto
from services.planner.domain import Configuration, Pool, Problem, SegmentKind
from services.planner.milp import Program, Solution
from services.planner.pricing import Prices, prices, row
from services.planner.score import score
from services.planner.strategies.annealing import annealing
from services.planner.strategies.base import base
from services.planner.strategies.co2opt import co2opt

FEW_GPUS = 32
RELATIVE_GAP = 1e-4
"""Closing the last 0.01 % takes seconds on a large fleet and changes nothing one could measure."""

TINY = 1e-9
"""Keeps a relative gap finite where f is 0, points."""

ROUNDING = 1e-6
"""Share of a segment that floating point may add to a load."""


def exact(problem: Problem) -> Configuration:
    """Return the best configuration there is, with its proven gap.

    Above FEW_GPUS the proof may stop at RELATIVE_GAP. Where it stops there, or where time ends,
    the other strategies are asked as well, so that none of them is ever better.
    """
    known = prices(problem)
    formulation = _Formulation.of(known)
    solution = formulation.program.minimise(
        formulation.goals,
        time_limit_s=problem.time_limit_s,
        relative_gap=0.0 if len(problem.gpus) <= FEW_GPUS else RELATIVE_GAP,
    )
    found = None if solution is None else formulation.configuration(solution)
    if found is not None and found.gap == 0.0:
        return found
    rivals = [strategy(problem) for strategy in (annealing, base, co2opt)]
    return _best(known, found, rivals)


def _best(
    known: Prices, found: Configuration | None, rivals: Sequence[Configuration]
) -> Configuration:
    """Return the best of all. What is proven for `found` bounds its rivals as well."""
    judged = [(score(known.problem, each, known), each) for each in rivals]
    best_score, best = max(judged, key=lambda each: each[0].worth)
    if found is None:
        return best
    found_score = score(known.problem, found, known)
    if found_score.worth >= best_score.worth:
        return found
    if found.gap is None or found_score.worth[:2] != best_score.worth[:2]:
        return best
    bound = found_score.objective + found.gap * max(abs(found_score.objective), TINY)
    distance = max(0.0, bound - best_score.objective)
    return replace(best, gap=distance / max(abs(best_score.objective), TINY))


@dataclass(slots=True)
class _Formulation:
    """The program of one problem, with the columns of its variables."""

    known: Prices
    program: Program = field(default_factory=Program)
    segments: dict[SegmentKind, int] = field(default_factory=dict)
    loads: dict[SegmentKind, int] = field(default_factory=dict)
    unserved: dict[int, float] = field(default_factory=dict)
    short: dict[int, float] = field(default_factory=dict)
    cost: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, known: Prices) -> _Formulation:
        """Write down the program."""
        made = cls(known)
        for kind in _candidates(known):
            made._add_segment(kind)
        made._add_demand()
        made._add_slices()
        return made

    @property
    def goals(self) -> Sequence[Mapping[int, float]]:
        """What to minimise, the most important first; costs are in points of f."""
        return [goal for goal in (self.unserved, self.short) if goal] + [self.cost]

    def configuration(self, solution: Solution) -> Configuration:
        """Return the configuration that a solution stands for, without idle segments."""
        load_rps: dict[SegmentKind, float] = {}
        segments: dict[SegmentKind, int] = {}
        for kind, column in self.loads.items():
            demand_rps = self.known.models[kind.model].demand_rps
            rps = demand_rps * float(solution.values[column])
            needed = min(_needed(self.known, kind, rps), solution.count(self.segments[kind]))
            if needed > 0:
                segments[kind], load_rps[kind] = needed, rps
        self._top_up(segments, load_rps)
        f = -solution.value - _fixed_points(self.known)
        gap = solution.distance / max(abs(f), TINY)
        return Configuration(segments, load_rps, gap=gap if math.isfinite(gap) else None)

    def _top_up(
        self, segments: Mapping[SegmentKind, int], load_rps: dict[SegmentKind, float]
    ) -> None:
        """Give the load that the solver's tolerances left over to whoever has room."""
        left_rps = {name: model.demand_rps for name, model in self.known.models.items()}
        for kind, rps in load_rps.items():
            left_rps[kind.model] -= rps
        for kind, count in segments.items():
            usable_rps = _usable_rps(self.known, kind) * count
            more_rps = max(0.0, min(left_rps[kind.model], usable_rps - load_rps[kind]))
            load_rps[kind] += more_rps
            left_rps[kind.model] -= more_rps

    def _add_segment(self, kind: SegmentKind) -> None:
        known = self.known
        demand_rps = known.models[kind.model].demand_rps
        usable_share = _usable_rps(known, kind) / demand_rps
        count = self.program.column(upper=float(_needed(known, kind, demand_rps)), integer=True)
        load = self.program.column(upper=1.0)
        self.program.row([(load, 1.0), (count, -usable_share)], high=0.0)
        self.segments[kind], self.loads[kind] = count, load
        self.cost[load] = -known.load_points(kind)
        if known.switch_points:
            started = self.program.column()
            self.cost[started] = known.switch_points
            self.program.row(
                [(started, 1.0), (count, -1.0)], low=-float(known.running.get(row(kind), 0))
            )

    def _add_demand(self) -> None:
        for name, model in self.known.models.items():
            weight = model.demand_rps / self.known.demand_rps
            own = [kind for kind in self.loads if kind.model == name]
            unserved = self.program.column(upper=1.0)
            self.unserved[unserved] = weight
            served = [(self.loads[kind], 1.0) for kind in own]
            self.program.row([*served, (unserved, 1.0)], low=1.0, high=1.0)
            if self.known.problem.objective.accuracy_floor > 0:
                short = self.program.column()
                self.short[short] = weight
                missed = [(self.loads[kind], self.known.shortfall(kind)) for kind in own]
                self.program.row([*missed, (short, -1.0)], high=0.0)

    def _add_slices(self) -> None:
        park = self.known.problem.objective.park_idle_gpus
        for pool, owned in self.known.problem.pools.items():
            layouts = maximal_layouts(pool.type.geometry)
            columns = [self.program.column(upper=float(owned), integer=True) for _ in layouts]
            self.program.row([(column, 1.0) for column in columns], high=float(owned))
            if park:
                self.cost |= dict.fromkeys(columns, self.known.idle_points(pool))
            counts = [Counter(placement.profile for placement in layout) for layout in layouts]
            for slice_kind in pool.type.geometry.kinds:
                used = self._used(pool, slice_kind.name)
                held = [
                    (column, -float(count[slice_kind.name]))
                    for column, count in zip(columns, counts, strict=True)
                    if count[slice_kind.name]
                ]
                if used:
                    self.program.row([*used, *held], high=0.0)
                    self._price_layout(pool, slice_kind.name, used)

    def _used(self, pool: Pool, profile: str) -> list[tuple[int, float]]:
        return [
            (column, 1.0)
            for kind, column in self.segments.items()
            if kind.pool == pool and kind.profile == profile
        ]

    def _price_layout(self, pool: Pool, profile: str, used: list[tuple[int, float]]) -> None:
        if self.known.layout_points:
            created = self.program.column()
            self.cost[created] = self.known.layout_points
            existing = self.known.existing.get((pool, profile), 0)
            self.program.row(
                [(created, 1.0), *((column, -1.0) for column, _ in used)], low=-float(existing)
            )


def _candidates(known: Prices) -> Iterator[SegmentKind]:
    """Yield the catalog's kinds that the objective can tell apart, and those that run.

    Latency is a rule, not a goal, so that a kind that only answers faster is left out. What runs
    need not be in the catalog: another may be better, but not by more than the price of changing.
    """
    groups: dict[tuple[str, str, Pool, str], list[SegmentKind]] = {}
    for kind in known.problem.catalog:
        if kind.model in known.models:
            groups.setdefault((kind.model, kind.variant, kind.pool, kind.profile), []).append(kind)
    found = {row(kind): kind for group in groups.values() for kind in pareto(group, latency=False)}
    for segment in known.problem.running:
        kind, model = segment.kind, known.models.get(segment.kind.model)
        usable = model is not None and in_time(known.problem.objective, model, kind)
        if usable and kind.throughput_rps > 0 and row(kind) in known.running:
            found.setdefault(row(kind), kind)
    yield from found.values()


def _needed(known: Prices, kind: SegmentKind, load_rps: float) -> int:
    """Return how many segments of a kind a load takes."""
    return math.ceil(load_rps / _usable_rps(known, kind) - ROUNDING)


def _usable_rps(known: Prices, kind: SegmentKind) -> float:
    return known.problem.objective.max_utilisation * kind.throughput_rps


def _fixed_points(known: Prices) -> float:
    """Return what the fleet's idle power costs where no decision changes it."""
    if known.problem.objective.park_idle_gpus:
        return 0.0
    pools = known.problem.pools
    return sum(count * known.idle_points(pool) for pool, count in pools.items())

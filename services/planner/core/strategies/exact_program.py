"""The mixed-integer program behind `exact`, for every mix of goals.

Variables, per segment kind s (row r: the same at any clock), model m, pool p, slice kind k, clock
h, maximal layout c and variant w:

    n_s   segments (integer)             x_s  load, as a share of the model's demand
    y_phc GPUs in layout c (integer)     u_m  share of the demand that is not served; z: the worst
    v_m   accuracy short of the floor    d_r, q_pk  segments to start, slices to create
    b_w   whether a segment of it starts t    longest time to load, s

    x_s * demand <= rho * throughput_s * n_s          sum_s x_s + u_m = 1, u_m <= z   (s: stage 0)
    sum of x_s over a pipeline's stage i = over its stage 0, for every i > 0
    sum_{s of phk} n_s <= sum_c count(c, k) * y_phc   sum_hc y_phc + sum_s g_s * n_s <= N_p
    sum_{s: g_s >= g} g_s / g * n_s <= G_pg, the groups of g GPUs that the nodes of p have
    sum_s x_s * shortfall_s <= v_m                    load_w * b_w <= t
    sum of power above idle over a site's x_s, y_phc and n_s of several GPUs <= its budget's room
    sum_{s of w} x_s <= b_w, if none of w runs; else, with most_r the most segments it can use,
    sum_{s of r} n_s - running_r <= most_r * b_w, for each row r of w
    d_r >= sum_{s of r} n_s - running_r               q_pk >= sum_{s of pk} n_s - existing_pk

Segments of g_s > 1 whole GPUs are in the last two, and in no layout.

Goals, one after the other: the least z, the least unserved load, the least accuracy below the
floor, the least missing redundancy (`domain_rows`), the best objective; where GPUs are all that
counts, then the fewest compute slices, then the least energy. Each model counts u and z by its
weight. z omits models that no GPU can serve, and all models where overload is not to be shared out.
u and v make every input feasible: overload degrades the plan instead of failing it, and is shared
out before it is minimised.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from services.planner.core.model import Configuration, Pool, SegmentKind
from services.planner.core.problem.failure_domains import demanding, surviving_share
from services.planner.core.problem.pricing import Prices, gpcs, most_gpcs
from services.planner.core.problem.serving_paths import balances, serving_paths
from services.planner.core.problem.site_power import room_w
from services.planner.core.solver.milp import Blocks, Goal, Numbers, Program, Solution, Terms
from services.planner.core.strategies.change_rows import ChangeRows
from services.planner.core.strategies.columns import terms_of
from services.planner.core.strategies.domain_rows import DomainRows
from services.planner.core.strategies.fleet_rows import add_gpus

FEW_GPUS = 32
"""GPUs up to which programs are solved to the optimum, and up to which each has rows of its own."""

SPARE_POINTS = 1e-4
"""Price of a fleet's worth of spare segments, points: it keeps idle segments few."""

ENERGY_GAP = 0.02
"""Relative gap at which the search for less energy ends, among equal numbers of GPUs and slices."""

TINY = 1e-9
"""Keeps a relative gap finite where the objective is 0, points."""

LEAST_USE = 0.1
"""Share of the load they may take that segments must have to make up for others' lateness."""

ROUNDING = 1e-6
"""Share of a segment that floating point may add to a load."""

TOLERATED: Final = 1e-4
"""Share of a demand that a solver's tolerance may leave unserved."""


@dataclass(slots=True)
class Formulation:
    """The program of one problem.

    Attributes:
        known: The problem and its prices.
        kinds: Segment kinds to choose from.
        program: The program.
        counts, loads: Columns of n and x, in order of `kinds`.
    """

    known: Prices
    kinds: Sequence[SegmentKind]
    program: Program = field(default_factory=Program)
    counts: Numbers = field(init=False)
    loads: Numbers = field(init=False)
    _within: Numbers = field(init=False)
    _worst: int = field(init=False)
    _unserved: Terms = field(init=False)
    _short: Terms = field(default_factory=dict)
    _layouts: Mapping[tuple[Pool, int], Numbers] = field(init=False)
    _domains: DomainRows = field(init=False)
    _cost: dict[int, float] = field(default_factory=dict)
    _excluded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._add_segments()
        self._add_pipelines()
        self._add_demand()
        self._add_floor()
        self._add_gpus()
        most = [self._most(kind) for kind in self.kinds]
        changes = ChangeRows(self.known, self.kinds, self.program, self.counts, self.loads, most)
        self._cost |= changes.add()
        self._add_domains()
        self._add_sites()

    def exclude(self, model: str, found: Configuration) -> None:
        """Require more of some kind than a configuration has, unless demand is left unserved.

        For segments of a model that are late together: fewer of each are late as well. The further
        ones must have load, or they would change nothing.
        """
        program, terms = self.program, list[tuple[int, float]]()
        for kind, count, load in zip(self.kinds, self.counts, self.loads, strict=True):
            more = found.segments.get(kind, 0) + 1
            if kind.model != model or more > self._most(kind):
                continue
            beyond = program.column(upper=1.0, integer=True)
            program.row([(int(count), 1.0), (beyond, -float(more))], low=0.0)
            used = min(1.0, LEAST_USE * more * self._share(kind))
            program.row([(int(load), 1.0), (beyond, -used)], low=0.0)
            terms.append((beyond, 1.0))
        unserved = [*self._unserved][[*self.known.models].index(model)]
        program.row([*terms, (unserved, 1.0 / ROUNDING)], low=1.0)
        self._excluded.add(model)

    @property
    def blocks(self) -> Blocks | None:
        """The models' knapsacks of segments; None if these are not all there is.

        A model may have no segment, or pipelines, or segments of several GPUs.
        """
        block = self._models(list(self.known.models))
        coupled = any(kind.stage.of > 1 or kind.gpus > 1 for kind in self.kinds)
        if coupled or len({*block}) < len(self.known.models):
            return None
        return Blocks(
            counts=self.counts,
            loads=self.loads,
            block=np.array(block, dtype=np.int32),
            share=np.array([self._share(kind) for kind in self.kinds]),
            rows=self._within,
            uncovered=np.array([*self._unserved], dtype=np.int32),
            slack=np.array([self._worst, *self._unserved, *self._short], dtype=np.int32),
        )

    def goals(self, tolerance: float) -> Sequence[Goal]:
        """Return the goals, the most important first; the objective is in points.

        Args:
            tolerance: Gap allowed for each, as a share of the objective or of all demand.
        """
        nodes = 1 if tolerance else 0  # a shortage within tolerance need not be proven
        goals = [Goal(terms, absolute=tolerance, nodes=nodes) for terms in self._shortages]
        goals.append(self._objective(tolerance))
        if self.known.fewest_only and not tolerance:
            goals.append(self._energy())
        return goals

    @property
    def _shortages(self) -> Sequence[Terms]:
        """Goals before the objective."""
        shortages: list[Terms] = [{self._worst: 1.0}, self._unserved, self._short]
        if self._domains.missing:
            shortages.append(dict.fromkeys(self._domains.missing, 1.0))
        return shortages

    def _objective(self, tolerance: float) -> Goal:
        """Return the objective; where proof is hard, it may be off by one GPU in a thousand.

        Where GPUs are all that counts, compute slices break ties: all of them weigh less than one
            GPU.
        """
        known, pools = self.known, self.known.problem.pools
        gpu_points = min(map(known.gpu_points, pools), default=0.0)
        most = gpu_points * min(1.0, tolerance * pools.total())
        if not known.fewest_only:
            return Goal(self._cost, tolerance, last_resort=most)
        tie = gpu_points / (known.fleet_gpcs + 1) / (2 if tolerance else 1)
        terms = self._cost | terms_of(self.counts, (tie * gpcs(kind) for kind in self.kinds))
        if not tolerance or known.layout_points or any(map(known.start_points, self.kinds)):
            return Goal(terms, tolerance, last_resort=most)
        ties = tie / gpu_points * max(most_gpcs(pool.type.geometry) for pool in pools)
        return Goal(terms, tolerance, step=gpu_points, ties=ties, last_resort=3 / 2 * most)

    def _energy(self) -> Goal:
        watts = np.array([self._demand_rps(kind) * kind.energy_j for kind in self.kinds])
        return Goal(terms_of(self.loads, watts / max(watts.sum(), TINY)), ENERGY_GAP, nodes=1)

    def solve(self, *, time_limit_s: float, tolerance: float) -> Configuration | None:
        """Return the best configuration found, with its proven gap; None: none was found in time.

        Args:
            time_limit_s: Limit of the search, s.
            tolerance: Relative gap at which the search may end.
        """
        solution = self.program.minimise(
            self.goals(tolerance),
            time_limit_s=time_limit_s,
            hopes=len(self._shortages),
            blocks=self.blocks,
        )
        return None if solution is None else self.configuration(solution)

    def configuration(self, solution: Solution) -> Configuration:
        """Return the configuration of a solution, without idle segments."""
        load_rps: dict[SegmentKind, float] = {}
        segments: dict[SegmentKind, int] = {}
        for kind, count, load in zip(self.kinds, self.counts, self.loads, strict=True):
            rps = self._demand_rps(kind) * float(solution.values[load])
            planned, model = solution.count(count), self.known.models[kind.model]
            needed = min(self._needed(kind, rps), planned)
            if demanding(model) or (needed > 0 and kind.model in self._excluded):
                needed = planned  # more than the load by itself needs
            if needed > 0:
                segments[kind], load_rps[kind] = needed, rps
        self._top_up(segments, load_rps)
        return Configuration(segments, load_rps, gap=self._gap(solution))

    def _gap(self, solution: Solution) -> float | None:
        """Return the objective's gap; None: time ended before the objective was solved.

        Shortages are shares of the demand: where they are proven only to a tolerance, the largest
            of
        all gaps.
        """
        before = len(self._shortages)
        if len(solution.outcomes) <= before:
            return None
        *shortages, cost = solution.outcomes[: before + 1]
        if not math.isfinite(cost.distance):
            return None
        objective = self.known.fixed_points + cost.value
        gaps = (each.distance for each in shortages)
        return max(cost.distance / max(abs(objective), TINY), *gaps)

    def _top_up(
        self, segments: Mapping[SegmentKind, int], load_rps: dict[SegmentKind, float]
    ) -> None:
        """Assign the load left over by the solver's tolerances to segments with room.

        Under power budgets more than that is left on purpose: room on segments is no power.
        """
        left_rps = {name: model.demand_rps for name, model in self.known.models.items()}
        room_rps: dict[str, dict[SegmentKind, float]] = {}
        for kind, count in segments.items():
            left_rps[kind.model] -= 0.0 if kind.stage.index else load_rps[kind]
            room = max(0.0, self._usable_rps(kind) * count - load_rps[kind])
            room_rps.setdefault(kind.model, {})[kind] = room
        limited = bool(self.known.problem.sites)
        for model, rooms in room_rps.items():
            if limited and left_rps[model] > TOLERATED * self.known.models[model].demand_rps:
                continue
            for path in serving_paths(rooms):
                more_rps = max(0.0, min(left_rps[model], path.capacity_rps))
                left_rps[model] -= more_rps
                for kind, rps in path.loads(more_rps).items():
                    load_rps[kind] += rps

    def _add_segments(self) -> None:
        """Limit loads by the capacity of their segments."""
        size, program = len(self.kinds), self.program
        most = [self._most(kind) for kind in self.kinds]
        taken = [-self._share(kind) for kind in self.kinds]
        self.counts = program.columns(size, upper=most, integer=True)
        self.loads = program.columns(size, upper=1.0)
        capacity = program.rows(size, high=0.0)
        program.terms(capacity, self.loads, 1.0)
        program.terms(capacity, self.counts, taken)
        self._within = capacity
        self._cost |= terms_of(self.loads, (-self.known.load_points(kind) for kind in self.kinds))
        if gpc_points := self.known.gpc_points:
            self._cost |= terms_of(self.counts, (gpc_points * gpcs(kind) for kind in self.kinds))

    def _add_pipelines(self) -> None:
        """Equate the load of a pipeline's first stage with that of each other stage."""
        for terms in balances(self.kinds):
            self.program.row(((int(self.loads[at]), by) for at, by in terms), low=0.0, high=0.0)

    def _add_demand(self) -> None:
        """Split every model's demand into served and unserved load."""
        program, names = self.program, list(self.known.models)
        at = self._models(names)
        unserved = program.columns(len(names), upper=1.0)
        demand = program.rows(len(names), low=1.0, high=1.0)
        program.terms(demand, unserved, 1.0)
        answers = [float(not kind.stage.index) for kind in self.kinds]
        program.terms(demand[at], self.loads, answers)
        cover = program.rows(len(names), low=1.0)  # redundant, but improves the solver's cuts
        program.terms(cover, unserved, 1.0)
        shares = np.array([self._share(kind) for kind in self.kinds])
        program.terms(cover[at], self.counts, shares * answers)
        self._within = np.concatenate([self._within, demand, cover])
        fair = [index for index, name in enumerate(names) if name in self.known.shared_out]
        weights = np.array([model.overload_weight for model in self.known.models.values()])
        self._worst = program.column(upper=float(max(weights, default=1.0)))
        worst = program.rows(len(fair), high=0.0)
        program.terms(worst, unserved[fair], weights[fair])
        program.terms(worst, self._worst, -1.0)
        self._unserved = terms_of(unserved, weights * self._weights())

    def _add_floor(self) -> None:
        """Keep every model's mean accuracy at the floor, or measure its shortfall."""
        if self.known.problem.objective.accuracy_floor > 0:
            program, names = self.program, list(self.known.models)
            short = program.columns(len(names))
            floor = program.rows(len(names), high=0.0)
            program.terms(floor, short, -1.0)
            missed = [self.known.shortfall(kind) for kind in self.kinds]
            program.terms(floor[self._models(names)], self.loads, missed)
            self._short = dict.fromkeys(short.tolist(), 1.0)  # each of its own demand

    def _add_gpus(self) -> None:
        """Limit segments by the slices of GPUs, and price these."""
        self._layouts = add_gpus(self.program, self.known.problem, self.kinds, self.counts)
        for (pool, _), columns in self._layouts.items():
            self._cost |= dict.fromkeys(columns.tolist(), self.known.gpu_points(pool))
        for kind, column in zip(self.kinds, self.counts.tolist(), strict=True):
            if kind.gpus > 1:
                points = kind.gpus * self.known.gpu_points(kind.pool)
                self._cost[column] = self._cost.get(column, 0.0) + points

    def _add_sites(self) -> None:
        """Limit the power of each site with a budget; none but an idle site always keeps it."""
        problem = self.known.problem
        for site in problem.sites:
            terms: list[tuple[int, float]] = []
            for (pool, _), columns in self._layouts.items():
                if pool.site == site.name:
                    watts = pool.pue * pool.type.use_power_w
                    terms += [(column, watts) for column in columns.tolist()]
            for kind, count, load in zip(self.kinds, self.counts, self.loads, strict=True):
                if kind.pool.site == site.name:
                    pue = kind.pool.pue
                    terms.append((int(load), pue * kind.energy_j * self._demand_rps(kind)))
                    if kind.gpus > 1:
                        watts = pue * kind.gpus * kind.pool.type.use_power_w
                        terms.append((int(count), watts))
            scale = max(site.limit_w, 1.0)
            room = room_w(problem, site) / scale
            self.program.row([(column, watts / scale) for column, watts in terms], high=room)

    def _add_domains(self) -> None:
        """Keep the promises of redundancy, or measure what is missing; price spare segments."""
        models, rows = self.known.models, self.program
        self._domains = DomainRows(self.known, self.kinds, rows, self.counts)
        self._domains.add(self._layouts)
        few = len(self.known.problem.gpus) <= FEW_GPUS
        for kind, count, load in zip(self.kinds, self.counts, self.loads, strict=True):
            if demanding(models[kind.model]):
                price = SPARE_POINTS * gpcs(kind) / self.known.fleet_gpcs
                self._cost[int(count)] = self._cost.get(int(count), 0.0) + price
                if few and models[kind.model].survive:
                    self._domains.add_least_load(kind, int(count), int(load))

    def add_places(self) -> None:
        """Add the rows with places for redundancy."""
        self._domains.add_places(self._layouts)

    def _models(self, names: Sequence[str]) -> list[int]:
        """Return the position of each kind's model among `names`."""
        position = {name: index for index, name in enumerate(names)}
        return [position[kind.model] for kind in self.kinds]

    def _weights(self) -> list[float]:
        models = self.known.models.values()
        return [model.demand_rps / self.known.demand_rps for model in models]

    def _demand_rps(self, kind: SegmentKind) -> float:
        return self.known.models[kind.model].demand_rps

    def _usable_rps(self, kind: SegmentKind) -> float:
        return self.known.usable_rps(kind)

    def _share(self, kind: SegmentKind) -> float:
        """Return the share of its model's demand that one segment can take, at most 1.

        Above 1, a count within the solver's tolerance of 0 could take a small demand.
        """
        return min(1.0, self._usable_rps(kind) / self._demand_rps(kind))

    def _most(self, kind: SegmentKind) -> int:
        """Return the most segments of a kind: for all demand, with as many again as may be lost."""
        model = self.known.models[kind.model]
        needed = self._needed(kind, self._demand_rps(kind))
        if not demanding(model):
            return needed
        share = surviving_share(self.known.problem.objective, model, kind)
        after = math.ceil(1 / share) if share else 0
        return 2 * max(needed, after) + model.replicas_min

    def _needed(self, kind: SegmentKind, load_rps: float) -> int:
        """Return the number of segments of a kind for a load; 0 only for rounding errors."""
        needed = math.ceil(load_rps / self._usable_rps(kind) - ROUNDING)
        return max(needed, int(load_rps > ROUNDING * self._demand_rps(kind)))

"""The objective as prices, the same for the score and for the MILP.

    objective = w1 * clover + w2 * fewest_gpus + w3 * infadapter - reconfiguration

in percentage points, the weights (`Objective.goals`) scaled to a sum of 1:

    clover      = lambda * dCarbon + (1 - lambda) * dAccuracy                  CLOVER, Eq. 1-3
    fewest_gpus = -100 * GPUs in use / GPUs of the fleet                       ParvaGPU
    infadapter  = 100 * (alpha * AA - (beta * RC + gamma * LC))                InfAdapter, Eq. 1

With one model and all load served, CLOVER's are its equations. For several models,

    dAccuracy = sum over requests of (a / A_base(model) - 1) / all demand * 100
    dCarbon   = (sum over served requests of C_base(model) - emissions)
                / (sum over all demand of C_base(model)) * 100
    AA        = sum over requests of a / A_base(model) / all demand
    RC        = compute slices in use / compute slices of the fleet
    LC        = longest loading time of a variant of which a segment has to be started, s

so that all but LC is linear in loads, segments and GPUs, and a refused request is worth nothing.
Where a model's accuracy has a price (`Problem.accuracy_price`), its part of dAccuracy is the carbon
that its points are worth, weighed like emissions. With `objective.kind: cost` emissions are money:
the cost of energy and carbon, as grams at a fixed rate.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

from services.kit.config import Goals
from services.kit.grouping import summed
from services.kit.mig import Geometry, maximal_layouts
from services.kit.units import S_PER_H, carbon_gco2e
from services.planner.core.model import Model, Pool, Problem, SegmentKind, variants_of
from services.planner.core.problem.catalog import Place, dedicated, in_time, whole
from services.planner.core.problem.latency_rule import admissible_rps, most_rps
from services.planner.core.problem.power_curve import request_energy_j
from services.planner.core.problem.validation import check

Row = tuple[str, str, Pool, str, int, int, int, int]
"""Identity of a segment kind: model, variant, pool, slice, batch size, processes, stage, GPUs.

Without the clock: a segment keeps running when its GPU changes its clock.
"""


def row(kind: SegmentKind) -> Row:
    """Return the identity of a kind; its figures may differ between two plans."""
    return (
        kind.model,
        kind.variant,
        kind.pool,
        kind.profile,
        kind.batch_size,
        kind.processes,
        kind.stage.index,
        kind.gpus,
    )


def gpcs(kind: SegmentKind) -> int:
    """Return the compute slices that a segment takes."""
    return kind.gpus * kind.pool.type.geometry.kind(kind.profile).compute_slices


def start_energy_j(kind: SegmentKind, load_s: float) -> float:
    """Return the energy that a segment takes before its first answer, J.

    Until then it holds its part of a GPU with a context, beside the segments that it replaces. The
    kernels of the few batches that warm it up are left out.

    Args:
        kind: Kind of the segment.
        load_s: Time to its first answer, warm-up included, s.
    """
    gpu = kind.pool.type
    return load_s * gpu.context_power_w * gpcs(kind) / most_gpcs(gpu.geometry)


@dataclass(frozen=True, slots=True)
class Prices:
    """Contribution of one unit of each decision to the objective, percentage points.

    Attributes:
        problem: The problem that is priced.
        goals: Weights by goal; their sum is 1.
        models: Models with a demand, by name.
        demand_rps: Demand of all models together, req/s.
        baseline_gco2e_per_s: C_base x demand by model.
        running: Number of running segments by row.
        existing: Number of existing slices by pool and kind.
        loading_s: Loading time by model and variant, as measured or stated, s.
        servable: Names of the models that some segment can serve in time.
        fleet_gpcs: Compute slices of the fleet, at least 1.
        host_idle_w: Host's idle power for each GPU of a pool, W; missing: plans do not count it.
    """

    problem: Problem
    goals: Goals
    models: Mapping[str, Model]
    demand_rps: float
    baseline_gco2e_per_s: Mapping[str, float]
    running: Mapping[Row, int]
    existing: Mapping[tuple[Pool, str], int]
    loading_s: Mapping[tuple[str, str], float]
    servable: frozenset[str]
    fleet_gpcs: int
    host_idle_w: Mapping[Pool, float]

    @property
    def shared_out(self) -> frozenset[str]:
        """Names of the models among which overload is shared out."""
        return self.servable if self.problem.objective.overload == "fair" else frozenset()

    @property
    def fewest_only(self) -> bool:
        """GPUs are all that counts; ties then go to fewer GPCs, and to less energy."""
        return self.goals.clover == self.goals.infadapter == 0

    @property
    def energy_matters(self) -> bool:
        """Energy can make a difference."""
        return self.fewest_only or self.goals.clover * self.problem.objective.weight_of_carbon > 0

    def usable_rps(self, kind: SegmentKind) -> float:
        """Return the most load that one segment of a kind may take of its model's demand, req/s."""
        return admissible_rps(self.problem.objective, self.models[kind.model], kind)

    def weighted(self, goals: Mapping[str, float]) -> float:
        """Return the weighted sum of the goals' values, by name."""
        weights = self.goals
        return (
            weights.clover * goals["clover"]
            + weights.fewest_gpus * goals["fewest_gpus"]
            + weights.infadapter * goals["infadapter"]
        )

    def counted_gco2e(self, pool: Pool, energy_j: float) -> float:
        """Return what the objective counts for energy: its carbon, or its cost as grams."""
        objective = self.problem.objective
        if objective.kind != "cost":
            return pool.carbon_gco2e(energy_j)
        cost_eur = pool.cost_eur(energy_j, objective.carbon_price_eur_per_t)
        return max(0.0, cost_eur) / objective.eur_per_counted_gram

    def carbon_points(self, gco2e_per_s: float) -> float:
        """Return the price of emissions in CLOVER's f."""
        weight = self.problem.objective.weight_of_carbon
        baseline_gco2e_per_s = sum(self.baseline_gco2e_per_s.values())
        return 100.0 * weight * gco2e_per_s / baseline_gco2e_per_s if self.models else 0.0

    def clover_points(self, kind: SegmentKind) -> float:
        """Return the contribution to f of `kind` serving all demand, without idle power.

        A pipeline's accuracy counts at its first stage; later stages only emit.
        """
        model = self.models[kind.model]
        emitted = self.counted_gco2e(kind.pool, kind.energy_j) * model.demand_rps
        if kind.stage.index:
            return -self.carbon_points(emitted)
        saved = self.carbon_points(self.baseline_gco2e_per_s[kind.model] - emitted)
        lost = kind.accuracy / model.best.accuracy - 1.0
        price_gco2e = self.problem.accuracy_price.get(kind.model)
        if price_gco2e is not None:
            return saved + self.carbon_points(100.0 * price_gco2e * lost * model.demand_rps)
        weight = 1.0 - self.problem.objective.weight_of_carbon
        return saved + 100.0 * weight * lost * model.demand_rps / self.demand_rps

    def accuracy_share(self, kind: SegmentKind) -> float:
        """Return the contribution to AA of serving all of a model's demand by `kind`, 0..1."""
        if kind.stage.index:
            return 0.0
        model = self.models[kind.model]
        return kind.accuracy / model.best.accuracy * model.demand_rps / self.demand_rps

    def load_points(self, kind: SegmentKind) -> float:
        """Return the contribution of `kind` serving all demand, without idle power."""
        alpha = self.problem.objective.infadapter.accuracy
        points = self.goals.clover * self.clover_points(kind) if self.goals.clover else 0.0
        if self.goals.infadapter:
            points += self.goals.infadapter * 100.0 * alpha * self.accuracy_share(kind)
        return points

    def idle_points(self, pool: Pool) -> float:
        """Return the price in CLOVER's f of one powered GPU, in use or not.

        It is that of its idle power and, where plans count them, of its share of its host's idle
        power and of its embodied carbon.
        """
        idle_w = pool.type.idle_power_w + self.host_idle_w.get(pool, 0.0)
        embodied = self.problem.embodied_gco2e_per_s.get(pool.type.name, 0.0)
        objective = self.problem.objective
        if objective.kind == "cost":
            embodied *= 1e-6 * objective.carbon_price_eur_per_t / objective.eur_per_counted_gram
        return self.carbon_points(self.counted_gco2e(pool, idle_w) + embodied)

    def use_points(self, pool: Pool) -> float:
        """Return the price in CLOVER's f of a GPU's additional power once it has segments."""
        return self.carbon_points(self.counted_gco2e(pool, pool.type.use_power_w))

    def gpu_points(self, pool: Pool) -> float:
        """Return the price of one more GPU in use."""
        points = self.goals.fewest_gpus * 100.0 / max(1, len(self.problem.gpus))
        points += self.goals.clover * self.use_points(pool)
        if self.problem.objective.park_idle_gpus:
            points += self.goals.clover * self.idle_points(pool)
        return points

    @property
    def fixed_points(self) -> float:
        """Price of the fleet's idle power where no decision changes it."""
        if self.problem.objective.park_idle_gpus:
            return 0.0
        pools = self.problem.pools.items()
        return self.goals.clover * sum(count * self.idle_points(pool) for pool, count in pools)

    @property
    def gpc_points(self) -> float:
        """Price of one compute slice in use."""
        beta = self.problem.objective.infadapter.resources
        return self.goals.infadapter * 100.0 * beta / self.fleet_gpcs

    @property
    def loading_points(self) -> float:
        """Price per second of the longest loading time."""
        points = self.goals.infadapter * 100.0 * self.problem.objective.infadapter.loading
        return points / self.problem.pays_back_h

    def shortfall(self, kind: SegmentKind) -> float:
        """Return how far serving all of the demand by `kind` stays below the accuracy floor.

        As a share of the best variant's accuracy; negative: the surplus that makes up for others. A
        pipeline's requests count at its first stage.
        """
        if kind.stage.index:
            return 0.0
        quality = kind.accuracy / self.models[kind.model].best.accuracy
        return self.problem.objective.accuracy_floor - quality

    def start_points(self, kind: SegmentKind) -> float:
        """Return the price of one segment that has to be started; 0 while nothing runs.

        It is the switch price, and that of the energy to load it.
        """
        if not self.running:
            return 0.0
        hours = self.problem.pays_back_h
        load_s = self.loading_s.get((kind.model, kind.variant), 0.0)
        mean_w = start_energy_j(kind, load_s) / (hours * S_PER_H)
        carbon = self.carbon_points(self.counted_gco2e(kind.pool, mean_w))
        return self._per_gpu(self.problem.objective.switch_price) + self.goals.clover * carbon

    @property
    def layout_points(self) -> float:
        """Price of one slice that has to be created, including those it displaces."""
        return self._per_gpu(self.problem.objective.layout_price)

    def _per_gpu(self, price: float) -> float:
        gpus = len(self.problem.gpus)
        return price / gpus / self.problem.pays_back_h if self.running else 0.0


def prices(problem: Problem) -> Prices:
    """Return the prices of a problem; every strategy starts with them.

    Raises:
        InvalidArgument: A number in the problem is not finite or negative.
    """
    check(problem)
    demanded = {model.name: model for model in problem.models if model.demand_rps > 0}
    running = tuple(running_kinds(problem))
    return Prices(
        problem=problem,
        goals=_scaled(problem.objective.goals),
        models=demanded,
        demand_rps=sum(model.demand_rps for model in demanded.values()),
        baseline_gco2e_per_s={
            name: model.demand_rps * baseline_gco2e(problem, model)
            for name, model in demanded.items()
        },
        running=Counter(map(row, running)),
        existing=Counter(
            (gpu.pool, placement.profile) for gpu in problem.gpus for placement in gpu.slices
        ),
        loading_s={
            key: problem.boot_s.get(key, variant.load_s)
            for key, variant in variants_of(demanded.values()).items()
        },
        servable=_servable(problem, demanded, running),
        fleet_gpcs=max(
            1, sum(n * most_gpcs(pool.type.geometry) for pool, n in problem.pools.items())
        ),
        host_idle_w=_host_idle_w(problem),
    )


def _host_idle_w(problem: Problem) -> dict[Pool, float]:
    """Return a host's idle power for each of its GPUs, as a mean over each pool, W."""
    host_w = problem.objective.host_idle_w
    if not host_w:
        return {}
    sizes = Counter(gpu.node for gpu in problem.gpus)
    shares = summed((gpu.pool, host_w / sizes[gpu.node]) for gpu in problem.gpus)
    return {pool: watts / problem.pools[pool] for pool, watts in shares.items()}


def _servable(
    problem: Problem, demanded: Mapping[str, Model], running: Iterable[SegmentKind]
) -> frozenset[str]:
    """Return the names of the models that some segment can serve in time.

    Stops at the first such kind of each model.
    """
    pools, found = problem.pools, set[str]()
    for kind in (*problem.catalog, *running):
        new = kind.model in demanded and kind.model not in found and kind.pool in pools
        if new and usable(problem, demanded[kind.model], kind):
            found.add(kind.model)
    return frozenset(found)


def running_kinds(problem: Problem) -> Iterator[SegmentKind]:
    """Yield the kind of every segment that runs on the fleet, with its GPU's current pool.

    Segments carry the carbon intensity of the time when they were placed.
    """
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    for segment in problem.running:
        pool = pools.get(segment.gpu_uuid)
        if pool is not None:
            kind = segment.kind
            yield kind if kind.pool == pool else replace(kind, pool=pool)


def usable(problem: Problem, model: Model | None, kind: SegmentKind) -> bool:
    """Return whether segments of a kind can serve a model's load in time and are still wanted.

    A segment that runs may have a batch size that the settings no longer allow.
    """
    return (
        model is not None
        and _allowed_batch(problem, model, kind)
        and _in_time(problem, model, kind)
        and admissible_rps(problem.objective, model, kind) > 0
    )


def _allowed_batch(problem: Problem, model: Model, kind: SegmentKind) -> bool:
    limits = (each.max_batch for each in model.variants if each.name == kind.variant)
    most = next(limits, None) or kind.batch_size
    return kind.batch_size in problem.batch_sizes or (
        kind.batch_size == most and any(size > most for size in problem.batch_sizes)
    )


def worthwhile(
    known: Prices, kinds: Iterable[SegmentKind], *, fastest_only: bool = False
) -> list[SegmentKind]:
    """Return the kinds that can serve in time and that no other beats, fastest first.

    A kind is beaten in admissible load and energy. The former takes milliseconds to compute
    (`queueing`): only kinds that could win with its upper bound are computed.

    Args:
        known: The problem and its prices.
        kinds: Kinds of one model, on one slice kind at one clock. Of equals, the first stays.
        fastest_only: Whether energy is ignored.
    """
    problem, models = known.problem, known.models
    waiting = [
        (-most_rps(problem.objective, kind), False, kind.energy_j, kind.latency_s, at, kind)
        for at, kind in enumerate(kinds)
        if kind.model in models and _in_time(problem, models[kind.model], kind)
    ]
    heapify(waiting)
    kept: list[SegmentKind] = []
    while waiting:
        _, exact, energy_j, latency_s, at, kind = heappop(waiting)
        if kept and (fastest_only or any(o.energy_j <= kind.energy_j for o in kept)):
            continue
        if exact:
            kept.append(kind)
        elif (rps := known.usable_rps(kind)) > 0:
            heappush(waiting, (-rps, True, energy_j, latency_s, at, kind))
    return kept


def _in_time(problem: Problem, model: Model, kind: SegmentKind) -> bool:
    served = model.demand_rps > 0 and kind.throughput_rps > 0
    fits = kind.gpus == 1 or problem.groups(kind.pool, kind.gpus) > 0
    return served and fits and in_time(problem.objective, model, kind)


def _scaled(goals: Goals) -> Goals:
    total = goals.clover + goals.fewest_gpus + goals.infadapter
    return Goals(
        clover=goals.clover / total,
        fewest_gpus=goals.fewest_gpus / total,
        infadapter=goals.infadapter / total,
    )


@lru_cache(maxsize=64)
def most_gpcs(geometry: Geometry) -> int:
    """Return the most compute slices that a GPU's layouts have."""
    return max(
        sum(geometry.kind(placement.profile).compute_slices for placement in layout)
        for layout in maximal_layouts(geometry)
    )


def baseline_gco2e(problem: Problem, model: Model) -> float:
    """Return C_base: carbon per request of the best variant on GPUs of its own, gCO2e.

    Active energy of a whole GPU that serves only this variant, plus the idle energy of as many GPUs
    as the model's demand needs, at the objective's baseline intensity. The GPUs are of the largest
    pool; the variant is the most accurate that fits on one. Each stage of a pipeline has GPUs of
    its own.
    """
    pools = sorted(problem.pools.items(), key=lambda item: (-item[1], item[0].type.name))
    for variant in sorted(model.variants, key=lambda each: -each.accuracy):
        for pool, _ in pools:
            places = (
                Place(model, variant, pool, whole(pool), stage) for stage, _ in variant.stages
            )
            kinds = [dedicated(problem, place) for place in places]
            if all(kinds):
                return sum(_baseline(problem, model, kind) for kind in kinds if kind is not None)
    return 1.0  # no GPU can serve this model: its reference has no weight


def _baseline(problem: Problem, model: Model, kind: SegmentKind) -> float:
    usable_rps = problem.objective.max_utilisation * kind.throughput_rps
    gpus = kind.gpus * max(1, math.ceil(model.demand_rps / usable_rps))
    idle_j = gpus * kind.pool.type.context_power_w / model.demand_rps
    active_j = request_energy_j(model, kind, gpus // kind.gpus, fills=False)
    energy_j = (active_j + idle_j) * kind.pool.pue
    return carbon_gco2e(energy_j, problem.objective.baseline_intensity_gco2e_per_kwh)

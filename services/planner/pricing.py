"""CLOVER's objective (SC'23, Eq. 1-3) as prices, the same for the score and for the MILP.

    f = lambda * dCarbon + (1 - lambda) * dAccuracy                       percentage points

With one model and all load served, these are CLOVER's equations. For several models,

    dAccuracy = sum over requests of (a / A_base(model) - 1) / all demand * 100
    dCarbon   = (sum over served requests of C_base(model) - emissions)
                / (sum over all demand of C_base(model)) * 100

so that f stays linear in loads, segments and powered GPUs, and a refused request saves nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from services.kit.units import carbon_gco2e
from services.planner.catalog import Place, dedicated, whole
from services.planner.domain import Model, Pool, Problem, SegmentKind

Row = tuple[str, str, Pool, str, int, int]
"""What makes two segment kinds the same: model, variant, pool, slice, batch size, processes."""


def row(kind: SegmentKind) -> Row:
    """Return the identity of a kind; figures may differ between two plans."""
    return (
        kind.model,
        kind.variant,
        kind.pool,
        kind.profile,
        kind.batch_size,
        kind.processes,
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """What a unit of each decision adds to f, percentage points.

    Attributes:
        problem: Of what.
        models: By name.
        baseline_gco2e_per_s: By model, C_base x demand.
        running: Segments that run, by row.
        existing: Slices that exist, by pool and kind.
    """

    problem: Problem
    models: Mapping[str, Model]
    baseline_gco2e_per_s: Mapping[str, float]
    running: Mapping[Row, int]
    existing: Mapping[tuple[Pool, str], int]

    @property
    def demand_rps(self) -> float:
        """All models' demand, req/s."""
        return sum(model.demand_rps for model in self.models.values())

    def carbon_points(self, gco2e_per_s: float) -> float:
        """Return what emissions cost."""
        weight = self.problem.objective.carbon_weight
        baseline_gco2e_per_s = sum(self.baseline_gco2e_per_s.values())
        return 100.0 * weight * gco2e_per_s / baseline_gco2e_per_s if self.models else 0.0

    def load_points(self, kind: SegmentKind) -> float:
        """Return what serving all of the model's demand by `kind` adds, idle power apart."""
        model = self.models[kind.model]
        emitted = kind.pool.carbon_gco2e(kind.energy_j) * model.demand_rps
        saved = self.carbon_points(self.baseline_gco2e_per_s[kind.model] - emitted)
        quality = kind.accuracy / model.best.accuracy - 1.0
        weight = 1.0 - self.problem.objective.carbon_weight
        return saved + 100.0 * weight * quality * model.demand_rps / self.demand_rps

    def idle_points(self, pool: Pool) -> float:
        """Return what the idle power of one GPU costs."""
        return self.carbon_points(pool.carbon_gco2e(pool.type.idle_power_w))

    def shortfall(self, kind: SegmentKind) -> float:
        """Return by how much serving all of the demand by `kind` misses the accuracy floor.

        Negative: how much it makes up for others. As a share of the best variant's accuracy.
        """
        quality = kind.accuracy / self.models[kind.model].best.accuracy
        return self.problem.objective.accuracy_floor - quality

    @property
    def switch_points(self) -> float:
        """Price of one segment that has to be started; nothing runs yet: none."""
        return self._per_gpu(self.problem.objective.switch_price)

    @property
    def layout_points(self) -> float:
        """Price of one slice that has to be created, with all that it displaces."""
        return self._per_gpu(self.problem.objective.layout_price)

    def _per_gpu(self, price: float) -> float:
        return price / len(self.problem.gpus) if self.problem.running else 0.0


def prices(problem: Problem) -> Prices:
    """Return the prices of a problem."""
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    demanded = {model.name: model for model in problem.models if model.demand_rps > 0}
    return Prices(
        problem=problem,
        models=demanded,
        baseline_gco2e_per_s={
            name: model.demand_rps * baseline_gco2e(problem, model)
            for name, model in demanded.items()
        },
        running=Counter(
            row(replace(each.kind, pool=pools[each.gpu_uuid]))
            for each in problem.running
            if each.gpu_uuid in pools
        ),
        existing=Counter(
            (gpu.pool, placement.profile) for gpu in problem.gpus for placement in gpu.slices
        ),
    )


def baseline_gco2e(problem: Problem, model: Model) -> float:
    """Return C_base: carbon per request of the best variant on GPUs of its own, gCO2e.

    Active energy of a whole GPU that serves only this variant, plus the idle energy of as many as
    the model's demand needs, at the objective's baseline intensity. The GPUs are of the largest
    pool; of the variants, the most accurate that fits on one.
    """
    pools = sorted(problem.pools.items(), key=lambda item: (-item[1], item[0].type.name))
    for variant in sorted(model.variants, key=lambda each: -each.accuracy):
        for pool, _ in pools:
            kind = dedicated(problem, Place(model, variant, pool, whole(pool)))
            if kind is not None:
                return _baseline(problem, model, kind)
    return 1.0  # nothing can serve this model, so that its reference weighs nothing either


def _baseline(problem: Problem, model: Model, kind: SegmentKind) -> float:
    usable_rps = problem.objective.max_utilisation * kind.throughput_rps
    gpus = max(1, math.ceil(model.demand_rps / usable_rps))
    idle_j = gpus * kind.pool.type.idle_power_w / model.demand_rps
    energy_j = (kind.energy_j + idle_j) * kind.pool.pue
    return carbon_gco2e(energy_j, problem.objective.baseline_intensity_gco2e_per_kwh)

"""Carbon that a plan saves against BASE, split by what saves it.

One thing changes at a time, from BASE to the plan, so that the parts add up to the whole:

    BASE: every model's best variant on whole GPUs, all of the fleet in use and evenly loaded
    place          the same energy, drawn in the zones in which the plan draws it
    variant        the plan's variants, on whole GPUs
    slice          on the plan's slices, with its batches and processes
    clocks         at the plan's clocks
    consolidation  on the plan's GPUs: the others are empty, or off where they are parked

Batches of texts are as large as the load makes them (`power_curve`): while all of the fleet is in
use each replica has a part of the load that it has in the plan, and takes more energy a request.
Following the grid over time is no part of one plan: `services.cli.account` has it from hours.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from services.kit.units import S_PER_H
from services.planner.core.model import (
    Configuration,
    Model,
    Pool,
    Problem,
    Score,
    SegmentKind,
    Variant,
    variants_of,
)
from services.planner.core.problem.catalog import Place, dedicated, measure, whole
from services.planner.core.problem.power_curve import curve_of
from services.planner.core.strategies.base import base

LEVERS: Final = ("place", "variant", "slice", "clocks", "consolidation")

EnergyOf = Callable[[SegmentKind], float]
"""Energy per request of a segment kind in another state of the change, J."""


def saved_by_lever(
    problem: Problem, configuration: Configuration, judged: Score
) -> dict[str, float]:
    """Return the carbon that a configuration saves against BASE by lever, gCO2e/h.

    Args:
        problem: The problem.
        configuration: The configuration; BASE serves the same load.
        judged: Its score, with its emissions at its load.
    """
    change = _Change(problem, configuration, judged)
    energies: tuple[EnergyOf, ...] = (
        change.best_variant,
        change.own_variant,
        change.at_full_clock,
        change.as_planned,
    )
    active_g = [change.spread_gco2e_per_h(), *map(change.gco2e_per_h, energies)]
    idle_g = _all_in_use(problem)
    states = [*(idle_g + each for each in active_g), judged.carbon_gco2e_per_h]
    return dict(zip(LEVERS, (before - after for before, after in pairwise(states)), strict=True))


class _Change:
    """The way from BASE to a plan, while all of the fleet is in use.

    Args:
        problem: The problem.
        configuration: The plan's.
        judged: Its score, with the GPUs that it uses.
    """

    def __init__(self, problem: Problem, configuration: Configuration, judged: Score) -> None:
        self._problem, self._configuration = problem, configuration
        self._models = {model.name: model for model in problem.models}
        self._variants = variants_of(problem.models)
        self._loads = {
            kind: rps
            for kind, rps in configuration.load_rps.items()
            if (kind.model, kind.variant) in self._variants and rps > 0
        }
        self._in_use = min(judged.gpus_in_use / max(len(problem.gpus), 1), 1.0) or 1.0
        self._on_whole = lru_cache(maxsize=None)(self._find_on_whole)
        self._of_base: Counter[str] = Counter()
        for kind, count in base(problem).segments.items():
            self._of_base[kind.model] += count
        # Whole GPUs that the load of a model's stage would fill.
        self._filled: defaultdict[tuple[str, int], float] = defaultdict(float)
        demands_rps: defaultdict[str, float] = defaultdict(float)
        for kind, rps in self._loads.items():
            self._filled[kind.model, kind.stage.index] += rps / self._whole(kind).throughput_rps
            demands_rps[kind.model] += 0.0 if kind.stage.index else rps
        self._best = {
            name: found
            for name, model in self._models.items()
            if (found := self._best_j(model, demands_rps[name] / self._replicas(name))) is not None
        }

    def gco2e_per_h(self, energy_of: EnergyOf) -> float:
        """Return the active emissions in the plan's zones."""
        return S_PER_H * sum(
            kind.pool.carbon_gco2e(rps * energy_of(kind)) for kind, rps in self._loads.items()
        )

    def spread_gco2e_per_h(self) -> float:
        """Return BASE's active emissions: the mean of all zones."""
        fleet = self._problem.pools
        everywhere = sum(pool.carbon_gco2e(count) for pool, count in fleet.items()) / fleet.total()
        return S_PER_H * sum(
            rps
            * self.best_variant(kind)
            * (everywhere if kind.model in self._best else kind.pool.carbon_gco2e(1.0))
            for kind, rps in self._loads.items()
        )

    def best_variant(self, kind: SegmentKind) -> float:
        """Return the energy per request of BASE's variant, J: the first stage counts for all."""
        if kind.model not in self._best:
            return self.own_variant(kind)
        return 0.0 if kind.stage.index else self._best[kind.model]

    def own_variant(self, kind: SegmentKind) -> float:
        """Return the energy per request of the plan's variant on whole GPUs, J."""
        alone = self._whole(kind)
        utilisation = self._filled[kind.model, kind.stage.index] / self._replicas(kind.model)
        return self._energy_j(alone, utilisation * alone.throughput_rps)

    def at_full_clock(self, kind: SegmentKind) -> float:
        """Return the energy per request of the plan's slice at the highest clock, J."""
        variant, pool = self._variants[kind.model, kind.variant], kind.pool
        slice_kind = pool.type.geometry.kind(kind.profile)
        place = Place(self._models[kind.model], variant, pool, slice_kind, kind.stage)
        twins = measure(place, (kind.batch_size,), kind.processes) if kind.clock_mhz else ()
        twin = next((each for each in twins if each.processes == kind.processes), kind)
        return self._energy_j(twin, self._spread_rps(kind))

    def as_planned(self, kind: SegmentKind) -> float:
        """Return the energy per request of the plan's slice at its clock, J."""
        return self._energy_j(kind, self._spread_rps(kind))

    def _spread_rps(self, kind: SegmentKind) -> float:
        """Return the load of one of the plan's segments if they filled the fleet."""
        count = max(self._configuration.segments.get(kind, 1), 1)
        return self._loads[kind] / count * self._in_use

    def _energy_j(self, kind: SegmentKind, rate_rps: float) -> float:
        """Return the energy per request of a segment, J; of texts by the batches of its load."""
        if kind.token_times is None or rate_rps <= 0:
            return kind.energy_j
        curve = curve_of(self._models[kind.model], kind)
        rate_rps = min(rate_rps, curve.most_rps)
        return curve.at(rate_rps) / rate_rps

    def _replicas(self, model: str) -> float:
        """Return BASE's replicas of a model; where it has no place for it, an equal part."""
        equal = max(len(self._problem.gpus) / len(self._models), 1.0)
        return self._of_base[model] or equal

    def _whole(self, kind: SegmentKind) -> SegmentKind:
        return self._on_whole(kind.model, kind.variant, kind.pool, kind.stage.index) or kind

    def _find_on_whole(
        self, model: str, variant: str, pool: Pool, stage: int
    ) -> SegmentKind | None:
        each = self._variants[model, variant]
        place = Place(self._models[model], each, pool, whole(pool), each.stages[stage][0])
        return dedicated(self._problem, place)

    def _best_j(self, model: Model, rate_rps: float) -> float | None:
        """Return the energy per request of the best variant that fits on whole GPUs, J."""
        for variant in sorted(model.variants, key=lambda each: -each.accuracy):
            means = list(self._means_j(model, variant, rate_rps))
            if len(means) == len(variant.stages):
                return sum(means)
        return None

    def _means_j(self, model: Model, variant: Variant, rate_rps: float) -> Iterator[float]:
        """Yield the mean energy of each stage over the GPUs that it fits on, J."""
        for stage in range(len(variant.stages)):
            fitting = [
                (self._energy_j(kind, rate_rps), count)
                for pool, count in self._problem.pools.items()
                if (kind := self._on_whole(model.name, variant.name, pool, stage)) is not None
            ]
            if fitting:
                yield sum(e * n for e, n in fitting) / sum(n for _, n in fitting)


def _all_in_use(problem: Problem) -> float:
    """Return the emissions of all GPUs with segments and without requests, gCO2e/h."""
    return sum(
        count * pool.carbon_gco2e((pool.type.idle_power_w + pool.type.use_power_w) * S_PER_H)
        for pool, count in problem.pools.items()
    )

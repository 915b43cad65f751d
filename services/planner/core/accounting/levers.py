"""Carbon that a plan saves against BASE, split by what saves it.

One thing changes at a time, from BASE to the plan, so that the parts add up to the whole:

    BASE: every model's best variant on whole GPUs, all of the fleet in use and evenly loaded
    place          the same energy, drawn in the zones in which the plan draws it
    variant        the plan's variants, on whole GPUs
    slice          on the plan's slices, with its batches and processes
    clocks         at the plan's clocks
    consolidation  on the plan's GPUs: the others are empty, or off where they are parked

Following the grid over time is no part of one plan: `services.cli.account` has it from hours.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
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
    variants_of,
)
from services.planner.core.problem.catalog import Place, dedicated, measure, whole

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
        judged: Its score, with its emissions.
    """
    known, variants = {m.name: m for m in problem.models}, variants_of(problem.models)
    loads = {
        kind: rps
        for kind, rps in configuration.load_rps.items()
        if (kind.model, kind.variant) in variants and rps > 0
    }
    fleet, idle_g = problem.pools, _all_in_use(problem)

    @cache
    def on_whole(model: str, variant: str, pool: Pool, stage: int) -> float | None:
        each = variants[model, variant]
        place = Place(known[model], each, pool, whole(pool), each.stages[stage][0])
        kind = dedicated(problem, place)
        return None if kind is None else kind.energy_j

    def own_variant(kind: SegmentKind) -> float:
        found = on_whole(kind.model, kind.variant, kind.pool, kind.stage.index)
        return kind.energy_j if found is None else found

    def at_full_clock(kind: SegmentKind) -> float:
        if not kind.clock_mhz:
            return kind.energy_j
        variant, pool = variants[kind.model, kind.variant], kind.pool
        slice_kind = pool.type.geometry.kind(kind.profile)
        place = Place(known[kind.model], variant, pool, slice_kind, kind.stage)
        twins = measure(place, (kind.batch_size,), kind.processes)
        return next((t.energy_j for t in twins if t.processes == kind.processes), kind.energy_j)

    def emitted(energy_of: EnergyOf) -> float:
        return S_PER_H * sum(
            kind.pool.carbon_gco2e(rps * energy_of(kind)) for kind, rps in loads.items()
        )

    best = {
        model.name: found
        for model in problem.models
        for found in [_best(model, fleet, on_whole)]
        if found is not None
    }

    def best_variant(kind: SegmentKind) -> float:
        if kind.model not in best:
            return own_variant(kind)
        return 0.0 if kind.stage.index else best[kind.model]

    everywhere = sum(pool.carbon_gco2e(count) for pool, count in fleet.items()) / fleet.total()
    spread_g = S_PER_H * sum(
        rps
        * best_variant(kind)
        * (everywhere if kind.model in best else kind.pool.carbon_gco2e(1.0))
        for kind, rps in loads.items()
    )
    energies: tuple[EnergyOf, ...] = (
        best_variant,
        own_variant,
        at_full_clock,
        lambda kind: kind.energy_j,
    )
    active_g = [spread_g, *map(emitted, energies)]
    states = [*(idle_g + each for each in active_g), judged.carbon_gco2e_per_h]
    return dict(zip(LEVERS, (before - after for before, after in pairwise(states)), strict=True))


def _all_in_use(problem: Problem) -> float:
    """Return the emissions of all GPUs with segments and without requests, gCO2e/h."""
    return sum(
        count * pool.carbon_gco2e((pool.type.idle_power_w + pool.type.use_power_w) * S_PER_H)
        for pool, count in problem.pools.items()
    )


def _best(
    model: Model,
    fleet: Mapping[Pool, int],
    on_whole: Callable[[str, str, Pool, int], float | None],
) -> float | None:
    """Return the energy per request of the best variant that fits on whole GPUs, J."""
    for variant in sorted(model.variants, key=lambda each: -each.accuracy):
        stages = range(len(variant.stages))
        mean = list(_means(model.name, variant.name, stages, fleet, on_whole))
        if len(mean) == len(stages):
            return sum(mean)
    return None


def _means(
    model: str,
    variant: str,
    stages: range,
    fleet: Mapping[Pool, int],
    on_whole: Callable[[str, str, Pool, int], float | None],
) -> Iterator[float]:
    """Yield the mean energy of each stage over the GPUs that it fits on, J."""
    for stage in stages:
        fitting = [
            (energy_j, count)
            for pool, count in fleet.items()
            if (energy_j := on_whole(model, variant, pool, stage)) is not None
        ]
        if fitting:
            yield sum(e * n for e, n in fitting) / sum(n for _, n in fitting)

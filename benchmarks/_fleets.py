"""Fleets and models that several benchmarks plan for."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.kit.hardware import gpu_types
from services.kit.mig import Geometry
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import Gpu, GpuType, Model, Pool, Problem, Segment, Variant
from services.planner.core.placement.placement import clocks
from services.planner.core.problem import catalog

EFFICIENTNET = {
    "b1": (0.70, 78.382),
    "b3": (1.8, 81.528),
    "b5": (9.9, 83.776),
    "b7": (37.0, 84.582),
}
"""GMAC per image (Tan and Le, ICML'19) and ImageNet top-1 in % (CLOVER's artifact)."""


def gpu_type(name: str) -> GpuType:
    """Return a GPU type as its agent reports it."""
    model = gpu_types.load(name)
    kinds = tuple(kind for kind in model.geometry.kinds if "+" not in kind.name)
    geometry = Geometry(model.geometry.memory_slices, kinds)
    return GpuType(
        name,
        geometry,
        model.sm_count,
        model.idle_power_w,
        model.context_power_w,
        model.max_power_w,
        max_clock_mhz=model.max_clock_mhz if model.clock_lock else 0,
        performance=model.performance,
    )


def fleet(pools: Iterable[tuple[Pool, int]]) -> tuple[Gpu, ...]:
    """Return GPUs without slices."""
    return tuple(
        Gpu(f"GPU-{where}-{index}", f"node-{where}-{index // 8}", pool)
        for where, (pool, number) in enumerate(pools)
        for index in range(number)
    )


def efficientnet(name: str, *, demand_rps: float, slo_s: float, scale: float = 1.0) -> Model:
    """Return the EfficientNet family as a model; `scale` multiplies its arithmetic."""
    variants = tuple(
        Variant(variant, accuracy, AnalyticProfile(scale * gmacs))
        for variant, (gmacs, accuracy) in EFFICIENTNET.items()
    )
    return Model(name, slo_s, 95.0, demand_rps, variants)


def problem(  # noqa: PLR0913  # what planners know, with defaults
    gpus: Sequence[Gpu],
    models: Sequence[Model],
    objective: Objective,
    running: Sequence[Segment] = (),
    *,
    seed: int = 0,
    clock_ratios: Sequence[float] = (1.0,),
    time_limit_s: float = 5.0,
) -> Problem:
    """Return the problem that a planner with default settings would pose."""
    batch_sizes = (1, 2, 4, 8, 16, 32)
    pools = tuple(dict.fromkeys(gpu.pool for gpu in gpus))
    return Problem(
        gpus=tuple(gpus),
        models=tuple(models),
        catalog=catalog.build(
            models, pools, objective, batch_sizes, max_processes=3, clock_ratios=clock_ratios
        ),
        objective=objective,
        running=tuple(running),
        seed=seed,
        time_limit_s=time_limit_s,
        batch_sizes=batch_sizes,
    )


def rolled_out(
    gpus: Iterable[Gpu], segments: Sequence[Segment], intensities: Mapping[str, float]
) -> tuple[tuple[Gpu, ...], tuple[Segment, ...]]:
    """Return the fleet with a plan on it, at the zones' carbon intensities, gCO2e/kWh."""
    held_mhz = clocks(segments)
    slices: dict[str, list[Placement]] = {}
    for segment in segments:
        slices.setdefault(segment.gpu_uuid, []).append(segment.placement)
    gpus = tuple(gpus)
    pools = {  # one object per value, as the planner's own fleet has them
        pool: replace(pool, intensity_gco2e_per_kwh=intensities[pool.zone])
        for pool in {gpu.pool for gpu in gpus}
    }
    moved = {
        gpu.uuid: replace(
            gpu,
            pool=pools[gpu.pool],
            slices=tuple(slices.get(gpu.uuid, ())),
            clock_mhz=held_mhz.get(gpu.uuid, 0),
        )
        for gpu in gpus
    }
    running = tuple(
        replace(each, kind=replace(each.kind, pool=moved[each.gpu_uuid].pool)) for each in segments
    )
    return tuple(moved.values()), running


def ids() -> Callable[[], str]:
    """Return a source of segment ids."""
    numbers = count()
    return lambda: f"s{next(numbers)}"


def changes(before: Sequence[Segment], after: Sequence[Segment]) -> int:
    """Return how many segments of a plan had to be started."""
    return (Counter(s.segment_id for s in after) - Counter(s.segment_id for s in before)).total()

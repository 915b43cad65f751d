"""Small fleets and models for the planner's tests, with the geometry that agents report."""

from collections.abc import Sequence
from dataclasses import replace

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.kit.hardware import gpu_types
from services.kit.mig import Geometry
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.model import Gpu, GpuType, Model, Pool, Problem, Segment, Variant
from services.planner.core.placement.placement import clocks
from services.planner.core.problem import catalog


def gpu_type(name: str = "a100-40gb") -> GpuType:
    """A GPU type from the agent's own table, without the media-engine kinds."""
    model = gpu_types.load(name)
    kinds = tuple(kind for kind in model.geometry.kinds if "+" not in kind.name)
    return GpuType(
        name=name,
        geometry=Geometry(model.geometry.memory_slices, kinds),
        sm_count=model.sm_count,
        idle_power_w=model.idle_power_w,
        context_power_w=model.context_power_w,
        max_power_w=model.max_power_w,
        max_clock_mhz=model.max_clock_mhz if model.clock_lock else 0,
        performance=model.performance,
    )


def pool(
    name: str = "a100-40gb",
    *,
    intensity: float = 207.13,
    zone: str = "US-CAL",
    pue: float = 1.5,
) -> Pool:
    return Pool(gpu_type(name), zone, pue, intensity)


def fleet(*pools: tuple[Pool, int]) -> tuple[Gpu, ...]:
    """GPUs of the pools, without slices."""
    return tuple(
        Gpu(f"GPU-{where}-{index}", f"node-{where}", each)
        for where, (each, count) in enumerate(pools)
        for index in range(count)
    )


def model(
    name: str = "vision",
    *,
    gmacs: Sequence[float] = (0.7, 1.9, 10.3, 38.0),
    accuracies: Sequence[float] = (78.4, 81.5, 83.8, 84.6),
    demand_rps: float = 500.0,
    slo_s: float = 0.15,
    load_s: Sequence[float] = (),
) -> Model:
    """By default EfficientNet B1, B3, B5, B7: published top-1 and multiply-accumulates."""
    variants = tuple(
        Variant(f"v{index}", accuracy, AnalyticProfile(work, memory_mib=1024), seconds)
        for index, (work, accuracy, seconds) in enumerate(
            zip(gmacs, accuracies, load_s or [0.0] * len(gmacs), strict=True)
        )
    )
    return Model(name, slo_s, 95.0, demand_rps, variants)


def problem(
    gpus: Sequence[Gpu],
    models: Sequence[Model],
    objective: Objective | None = None,
    *,
    running: Sequence[Segment] = (),
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    max_processes: int = 3,
    clock_ratios: Sequence[float] = (1.0,),
    time_limit_s: float = 20.0,
    seed: int = 0,
) -> Problem:
    """The problem that the planner would pose."""
    objective = objective or Objective()
    pools = tuple(dict.fromkeys(gpu.pool for gpu in gpus))
    return Problem(
        gpus=tuple(gpus),
        models=tuple(models),
        catalog=catalog.build(
            models, pools, objective, batch_sizes, max_processes, clock_ratios=clock_ratios
        ),
        objective=objective,
        running=tuple(running),
        seed=seed,
        time_limit_s=time_limit_s,
        batch_sizes=tuple(batch_sizes),
    )


def with_plan(gpus: Sequence[Gpu], segments: Sequence[Segment]) -> tuple[Gpu, ...]:
    """The fleet after a plan was rolled out: with the plan's slices and clocks."""
    slices: dict[str, tuple[Placement, ...]] = {}
    for segment in segments:
        slices[segment.gpu_uuid] = (*slices.get(segment.gpu_uuid, ()), segment.placement)
    held_mhz = clocks(segments)
    return tuple(
        replace(gpu, slices=slices.get(gpu.uuid, gpu.slices), clock_mhz=held_mhz.get(gpu.uuid, 0))
        for gpu in gpus
    )

"""A fleet of one kind of GPU, one model, and what is decided for them."""

from collections import defaultdict
from dataclasses import replace
from itertools import count

from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentState
from services.kit.config import Objective, Planner
from services.kit.hardware.gpu_types import load
from services.kit.profiles.core.analytic import AnalyticProfile
from services.planner.core.decide import Decision, Snapshot, decide
from services.planner.core.model import Gpu, GpuType, Model, Pool, Variant
from tests.support.fake_agent import A100

SETTINGS = Planner(batch_sizes=(1, 4, 16), max_processes=2)
TYPE = GpuType("a100-40gb", A100, 108, 55.0, 55.0, 400.0, performance=load("a100-40gb").performance)
POOL = Pool(TYPE, "Z", 1.2, 100.0)


def analytic(gmacs_per_item: float) -> AnalyticProfile:
    return AnalyticProfile(
        gmacs_per_item=gmacs_per_item, memory_mib=1024.0, memory_mib_per_item=32.0
    )


MODEL = Model(
    name="digits",
    slo_latency_s=0.2,
    slo_percentile=95.0,
    demand_rps=60.0,
    variants=(Variant("small", 90.0, analytic(1.0)), Variant("large", 98.0, analytic(15.0))),
)


def snapshot(strategy: str = "exact", *, intensity: float = 100.0, gpus: int = 2) -> Snapshot:
    pool = replace(POOL, intensity_gco2e_per_kwh=intensity)
    return Snapshot(
        gpus=tuple(Gpu(f"GPU-{number}", "node-a", pool) for number in range(gpus)),
        models=(MODEL,),
        running=(),
        shares={},
        objective=Objective(),
        strategy=strategy,
    )


def decided(snapshot: Snapshot, prefix: str = "s") -> Decision:
    numbers = count(1)
    return decide(snapshot, SETTINGS, lambda: f"{prefix}-{next(numbers)}")


def done(before: Snapshot, decision: Decision) -> Snapshot:
    """Return what is known after the decision was carried out."""
    slices: dict[str, set[Placement]] = defaultdict(set)
    for segment in decision.target:
        slices[segment.gpu_uuid].add(segment.placement)
    return replace(
        before,
        gpus=tuple(replace(gpu, slices=tuple(sorted(slices[gpu.uuid]))) for gpu in before.gpus),
        running=tuple(
            Segment(segment.spec, SegmentState.READY, ("h:1",)) for segment in decision.target
        ),
        shares={segment.segment_id: segment.share for segment in decision.target},
    )

"""Feasibility of an earlier plan on the current fleet, and the segments to run for it."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from cinquefoil.gpuagent.v1.records import SegmentSpec
from cinquefoil.planner.v1.records import Plan, PlannedSegment
from services.kit.errors import InvalidArgument
from services.kit.grouping import grouped, summed
from services.kit.profiles.core.profile import BatchCost, Times, batch_times_s
from services.kit.segment import gpus_of
from services.planner.core.model import (
    Gpu,
    Model,
    PipelineStage,
    Segment,
    SegmentKind,
    Variant,
    Variants,
    variants_of,
)
from services.planner.core.plan import queue_of_planned

_SHARES_SUM_TO = 1e-3


def lacks(
    segments: Iterable[PlannedSegment], gpus: Iterable[Gpu], models: Iterable[Model]
) -> tuple[str, ...]:
    """Return what the fleet or the deployment lacks to hold `segments`; empty: nothing.

    Args:
        segments: A plan's segments.
        gpus: The fleet.
        models: The deployment's models.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    offered = variants_of(models)
    by_gpu = grouped(((each.node, uuid), each) for each in segments for uuid in gpus_of(each.spec))
    return tuple(
        fault
        for (node, uuid), here in by_gpu.items()
        for fault in _faults(node, uuid, known.get(uuid), here, offered)
    )


def _faults(
    node: str,
    uuid: str,
    gpu: Gpu | None,
    segments: Sequence[PlannedSegment],
    offered: Variants,
) -> Iterator[str]:
    if gpu is None or gpu.node != node:
        yield f"GPU {uuid} of {node} is away"
        return
    fault = gpu.pool.type.geometry.problem(segment.spec.placement for segment in segments)
    if fault:
        yield f"GPU {uuid} of {node}: {fault}"
        return
    for spec in (segment.spec for segment in segments):
        variant = offered.get((spec.model, spec.variant))
        if variant is None:
            yield f"the deployment has no variant {spec.variant!r} of model {spec.model!r}"
        elif _measured(spec, gpu, variant, 0)[0] is None:
            yield f"{spec.variant} does not fit on {spec.placement} of GPU {uuid}"


def left_of(
    segments: Iterable[PlannedSegment], gpus: Iterable[Gpu], models: Iterable[Model]
) -> tuple[PlannedSegment, ...]:
    """Return the segments of a plan that the fleet can still hold."""
    segments, gpus, models = tuple(segments), tuple(gpus), tuple(models)
    by_gpu = grouped((uuid, each) for each in segments for uuid in gpus_of(each.spec))
    lost = {
        each.spec.segment_id
        for here in by_gpu.values()
        if lacks(here, gpus, models)
        for each in here
    }
    return tuple(segment for segment in segments if segment.spec.segment_id not in lost)


def check(segments: Sequence[PlannedSegment]) -> None:
    """Check the shares of a plan from outside.

    Raises:
        InvalidArgument: A share is not within 0..1, or those of a queue do not sum to 1.
    """
    for index, segment in enumerate(segments):
        if not 0 <= segment.share <= 1:
            where = f"plan.segments[{index}].share"
            raise InvalidArgument.at(where, f"must be 0..1, got {segment.share:g}")
    shares = summed((queue_of_planned(segment), segment.share) for segment in segments)
    for (model, variant, stage), total in shares.items():
        if not math.isclose(total, 1.0, abs_tol=_SHARES_SUM_TO):
            which = f"{model} {variant}, stage {stage}," if stage else model
            raise InvalidArgument.at(
                "plan.segments", f"the shares of {which} must sum to 1, got {total:g}"
            )


def target(
    plan: Plan,
    gpus: Iterable[Gpu],
    models: Sequence[Model],
    running: Iterable[Segment],
    new_id: Callable[[str], str],
) -> tuple[Segment, ...]:
    """Return the segments that carry a plan out again.

    Args:
        plan: A plan that the fleet can hold.
        gpus: The fleet.
        models: The deployment's models.
        running: Running segments that may stay: one that is equal in all but its id keeps its id.
        new_id: Returns the id of a segment to start, given its id in the plan: an id that ran
            before and ended keeps its own energy account.
    """
    ids = grouped((each.identity, each.segment_id) for each in running)
    return tuple(
        replace(
            each,
            segment_id=same.pop() if (same := ids.get(each.identity)) else new_id(each.segment_id),
        )
        for each in resumed(plan, gpus, models)
    )


def resumed(plan: Plan, gpus: Iterable[Gpu], models: Sequence[Model]) -> tuple[Segment, ...]:
    """Return the segments of a plan whose rollout resumes, with their ids; see `target`."""
    there, offered = {gpu.uuid: gpu for gpu in gpus}, variants_of(models)
    known: dict[Hashable, SegmentKind] = {}
    return tuple(
        placed(
            each.spec,
            there[each.spec.gpu_uuid],
            offered,
            share=each.share,
            clock_mhz=plan.clocks_mhz.get(each.spec.gpu_uuid, 0),
            known=known,
        )
        for each in plan.segments
    )


def placed(  # noqa: PLR0913  # a segment, and what is known of its kind
    spec: SegmentSpec,
    gpu: Gpu,
    offered: Variants,
    *,
    share: float,
    clock_mhz: int,
    known: dict[Hashable, SegmentKind] | None = None,
) -> Segment:
    """Return a segment of a plan as a Segment.

    Args:
        spec: What runs where.
        gpu: GPU of the segment.
        offered: The deployment's variants.
        share: Share of its model's load, 0..1.
        clock_mhz: SM clock of its GPU, MHz; 0: not lowered.
        known: Kinds so far of the same variants; each is computed once.
    """
    known = {} if known is None else known
    slice_ = (id(gpu.pool), spec.placement.profile, clock_mhz, len(gpus_of(spec)))
    key = (spec.model, spec.variant, spec.stage, spec.batch_size, spec.processes, *slice_)
    kind = known.get(key)
    if kind is None:
        kind = known[key] = _kind(spec, gpu, offered, clock_mhz)
    return Segment(
        segment_id=spec.segment_id,
        kind=kind,
        node=gpu.node,
        gpu_uuid=gpu.uuid,
        placement=spec.placement,
        share=share,
        peers=spec.peer_gpu_uuids,
    )


def _kind(spec: SegmentSpec, gpu: Gpu, offered: Variants, clock_mhz: int) -> SegmentKind:
    """Return the kind of a segment, which need not be in the catalog.

    A kind whose model, variant or stage has left the deployment has no throughput.
    """
    variant = offered.get((spec.model, spec.variant))
    cost, times_s = (None, ()) if variant is None else _measured(spec, gpu, variant, clock_mhz)
    stage = variant.stages[spec.stage][0] if variant and cost else PipelineStage(spec.stage)
    return SegmentKind(
        model=spec.model,
        variant=spec.variant,
        pool=gpu.pool,
        profile=spec.placement.profile,
        batch_size=spec.batch_size,
        processes=spec.processes,
        latency_s=cost.latency_s if cost else 0.0,
        throughput_rps=spec.processes * spec.batch_size / cost.latency_s if cost else 0.0,
        energy_j=cost.energy_j / spec.batch_size if cost else 0.0,
        accuracy=variant.accuracy if variant and cost else 0.0,
        clock_mhz=clock_mhz,
        stage=stage,
        times_s=times_s,
        gpus=len(gpus_of(spec)),
    )


def _measured(
    spec: SegmentSpec, gpu: Gpu, variant: Variant, clock_mhz: int
) -> tuple[BatchCost | None, Times]:
    """Return the cost of a full batch, and the times of batches; None: unknown."""
    gpus, kind = len(gpus_of(spec)), gpu.pool.type
    if spec.stage >= len(variant.stages) or gpus != variant.gpus:
        return None, ()
    shape = kind.shape(kind.geometry.kind(spec.placement.profile), gpus)
    ratio = clock_mhz / kind.max_clock_mhz if 0 < clock_mhz < kind.max_clock_mhz else 1.0
    _, profile = variant.stages[spec.stage]

    def batch(items: int, busy: int) -> BatchCost | None:
        return profile.batch(shape, items, busy, clock_ratio=ratio)

    cost = batch(spec.batch_size, spec.processes)
    return cost, batch_times_s(batch, spec.batch_size, spec.processes) if cost else ()

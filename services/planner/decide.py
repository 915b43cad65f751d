"""From a snapshot to a decision: strategy, placement and rollout, in one pure function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.kit.deployment import Objective
from services.kit.deployment import Planner as Settings
from services.planner import catalog, placement, rollout, score
from services.planner.domain import (
    Configuration,
    Gpu,
    Model,
    Pool,
    Problem,
    Rollout,
    Score,
    Segment,
    SegmentKind,
)
from services.planner.fleet import RunningSegment, SegmentState
from services.planner.plan import SegmentSpec
from services.planner.strategies import REGISTRY

STRATEGIES = frozenset(REGISTRY)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a decision is made from.

    Attributes:
        gpus: The fleet.
        models: What is to be served, with the load to provide for.
        running: Every segment that runs, in whatever state.
        shares: Share of its model's load now, by segment id.
        objective: What a good plan is.
        strategy: Who looks for it.
    """

    gpus: tuple[Gpu, ...]
    models: tuple[Model, ...]
    running: tuple[RunningSegment, ...]
    shares: dict[str, float]
    objective: Objective
    strategy: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What should run, what it is worth, and the way there.

    Attributes:
        configuration: What the strategy decided.
        score: What that is worth.
        running: What runs now.
        target: What shall run.
        rollout: From one to the other.
    """

    configuration: Configuration
    score: Score
    running: tuple[Segment, ...]
    target: tuple[Segment, ...]
    rollout: Rollout


def decide(snapshot: Snapshot, settings: Settings, new_id: Callable[[], str]) -> Decision:
    """Decide what should run where.

    Args:
        snapshot: What is known.
        settings: Batch sizes, processes, time limit, seed.
        new_id: Gives ids that were never used.
    """
    kinds = catalog.build(
        snapshot.models,
        tuple(dict.fromkeys(gpu.pool for gpu in snapshot.gpus)),
        snapshot.objective,
        settings.batch_sizes,
        settings.max_processes,
    )
    running = _placed(snapshot)
    leaving = {
        segment.spec.segment_id
        for segment in snapshot.running
        if segment.state is SegmentState.DRAINING
    }
    problem = Problem(
        gpus=snapshot.gpus,
        models=snapshot.models,
        catalog=kinds,
        objective=snapshot.objective,
        running=tuple(each for each in running if each.segment_id not in leaving),
        seed=settings.seed,
        time_limit_s=settings.time_limit_s,
        batch_sizes=settings.batch_sizes,
    )
    configuration = REGISTRY[snapshot.strategy](problem)
    target = placement.place(problem, configuration, new_id)
    return Decision(
        configuration=configuration,
        score=score.score(problem, configuration),
        running=running,
        target=target,
        rollout=rollout.plan_rollout(snapshot.gpus, running, target, snapshot.models),
    )


def _placed(snapshot: Snapshot) -> tuple[Segment, ...]:
    """Return what runs in the strategies' words; what runs on GPUs we lack is left out."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    return tuple(
        Segment(
            segment_id=running.spec.segment_id,
            kind=_kind(running.spec, gpu.pool, snapshot.models),
            node=gpu.node,
            gpu_uuid=gpu.uuid,
            placement=running.spec.placement,
            share=snapshot.shares.get(running.spec.segment_id, 0.0),
        )
        for running in snapshot.running
        if (gpu := gpus.get(running.spec.gpu_uuid)) is not None
    )


def _kind(spec: SegmentSpec, pool: Pool, models: tuple[Model, ...]) -> SegmentKind:
    """Return the kind of a segment that runs, which need not be in the catalog.

    One whose model or variant the deployment no longer has can do nothing for us.
    """
    slice_kind = pool.type.geometry.kind(spec.placement.profile)
    for model in models:
        for variant in model.variants:
            if (model.name, variant.name) != (spec.model, spec.variant):
                continue
            place = catalog.Place(model, variant, pool, slice_kind)
            for kind in catalog.measure(place, (spec.batch_size,), spec.processes):
                if kind.processes == spec.processes:
                    return kind
    return SegmentKind(
        model=spec.model,
        variant=spec.variant,
        pool=pool,
        profile=spec.placement.profile,
        batch_size=spec.batch_size,
        processes=spec.processes,
        latency_s=0.0,
        throughput_rps=0.0,
        energy_j=0.0,
        accuracy=0.0,
    )

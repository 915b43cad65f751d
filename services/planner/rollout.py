"""The safe order from what runs to a plan: create, warm, shift load, drain, destroy.

Three kinds of change, in this order:

1. *grow*: what needs nobody's room. Free slices are created; new segments start, beside the old
   one where a slice changes its segment and both fit (make before break).
2. *rebuild*: what needs room. Old and new placements of one GPU that overlap form a component; its
   segments drain, its slices go, the new ones come. One component at a time, the one that leaves
   most capacity first.
3. *shrink*: what is no longer needed serves until all else is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx

from services.kit.mig import Placement
from services.planner.domain import (
    Action,
    CreateSlice,
    DestroySlice,
    Gpu,
    Model,
    Rollout,
    Segment,
    Stage,
    StartSegment,
    StopSegment,
)


@dataclass(frozen=True, slots=True)
class _Change:
    """What must happen together. Attributes: segments out and in, slices out and in."""

    stop: tuple[Segment, ...] = ()
    destroy: tuple[DestroySlice, ...] = ()
    create: tuple[CreateSlice, ...] = ()
    start: tuple[Segment, ...] = ()

    def stage(self, serving: Iterable[str]) -> Stage:
        """Return the stage that breaks, then makes."""
        leaving = {segment.segment_id for segment in self.stop}
        return Stage(
            serving=frozenset(serving) - leaving,
            actions=_ordered(_stops(self.stop), self.destroy, self.create, _starts(self.start)),
        )


@dataclass(slots=True)
class _Changes:
    """All changes, sorted by what they need."""

    create: list[CreateSlice] = field(default_factory=list)
    warm: list[Segment] = field(default_factory=list)
    relieved: list[Segment] = field(default_factory=list)
    rebuild: list[_Change] = field(default_factory=list)
    surplus: list[Segment] = field(default_factory=list)


def plan_rollout(
    gpus: Sequence[Gpu],
    running: Sequence[Segment],
    target: Sequence[Segment],
    models: Sequence[Model],
) -> Rollout:
    """Return the stages that lead from `running` to `target`.

    Args:
        gpus: The fleet, with the slices that exist.
        running: Segments that run; those whose id is in `target` are kept as they are.
        target: Segments that shall run; valid layouts.
        models: For their demand, and for what fits beside what.
    """
    changes = _sort(gpus, running, target, models)
    serving = {segment.segment_id: segment for segment in running}
    stages: list[Stage] = []

    grow = Stage(frozenset(serving), _ordered(changes.create, _starts(changes.warm)))
    serving |= {segment.segment_id: segment for segment in changes.warm}
    for segment in changes.relieved:
        del serving[segment.segment_id]
    stages += [grow, Stage(frozenset(serving), _ordered(_stops(changes.relieved)))]

    capacities = [_capacity(serving.values(), models)]
    left = list(changes.rebuild)
    while left:
        change = max(left, key=lambda each: _worth(each, serving.values(), models))
        left.remove(change)
        for segment in change.stop:
            del serving[segment.segment_id]
        stages.append(change.stage(serving))
        capacities.append(_capacity(serving.values(), models))
        serving |= {segment.segment_id: segment for segment in change.start}

    for segment in changes.surplus:
        del serving[segment.segment_id]
    stages.append(Stage(frozenset(serving), _ordered(_stops(changes.surplus))))
    capacities.append(_capacity(serving.values(), models))
    return Rollout(
        stages=tuple(stage for stage in stages if stage.actions),
        least_capacity={
            model.name: min(capacity[model.name] for capacity in capacities) for model in models
        },
    )


def _sort(
    gpus: Sequence[Gpu],
    running: Sequence[Segment],
    target: Sequence[Segment],
    models: Sequence[Model],
) -> _Changes:
    changes = _Changes()
    kept = {segment.segment_id for segment in running} & {each.segment_id for each in target}
    for gpu in gpus:
        old = [s for s in running if s.gpu_uuid == gpu.uuid and s.segment_id not in kept]
        new = [s for s in target if s.gpu_uuid == gpu.uuid and s.segment_id not in kept]
        wanted = {s.placement for s in target if s.gpu_uuid == gpu.uuid}
        for placements in _components(gpu, wanted):
            _sort_component(gpu, placements & wanted, placements - wanted, (old, new), changes)
        untouched = set(gpu.slices) - _overlapped(gpu, wanted)
        for placement in sorted(untouched):
            here = [s for s in old if s.placement == placement]
            coming = [s for s in new if s.placement == placement]
            _sort_slice(here, coming, models, changes)
    return changes


def _components(gpu: Gpu, wanted: set[Placement]) -> Iterable[set[Placement]]:
    """Yield groups of slices to create, with the existing slices that lie in their way."""
    graph: nx.Graph[Placement] = nx.Graph()
    missing = wanted - set(gpu.slices)
    graph.add_nodes_from(sorted(missing))
    graph.add_edges_from(
        (one, other)
        for one in sorted(missing)
        for other in gpu.slices
        if gpu.pool.type.geometry.overlap(one, other)
    )
    yield from nx.connected_components(graph)


def _overlapped(gpu: Gpu, wanted: set[Placement]) -> set[Placement]:
    missing = wanted - set(gpu.slices)
    overlap = gpu.pool.type.geometry.overlap
    return {have for have in gpu.slices if any(overlap(have, want) for want in missing)}


def _sort_component(
    gpu: Gpu,
    create: set[Placement],
    destroy: set[Placement],
    segments: tuple[list[Segment], list[Segment]],
    changes: _Changes,
) -> None:
    old, new = segments
    creates = tuple(CreateSlice(gpu.uuid, placement) for placement in sorted(create))
    starts = [segment for segment in new if segment.placement in create]
    if not destroy:
        changes.create += creates
        changes.warm += starts
        return
    changes.rebuild.append(
        _Change(
            stop=tuple(segment for segment in old if segment.placement in destroy),
            destroy=tuple(DestroySlice(gpu.uuid, placement) for placement in sorted(destroy)),
            create=creates,
            start=tuple(starts),
        )
    )


def _sort_slice(
    old: list[Segment], new: list[Segment], models: Sequence[Model], changes: _Changes
) -> None:
    if not new:
        changes.surplus += old
    elif _fit_together([*old, *new], models):
        changes.warm += new
        changes.relieved += old
    else:
        changes.rebuild.append(_Change(stop=tuple(old), start=tuple(new)))


def _fit_together(segments: Sequence[Segment], models: Sequence[Model]) -> bool:
    """Tell whether all of these can be in the memory of their slice at once.

    As if each variant had to host everybody's processes at the largest batch: a bound from above.
    """
    processes = sum(segment.kind.processes for segment in segments)
    batch_size = max(segment.kind.batch_size for segment in segments)
    variants = {(m.name, v.name): v for m in models for v in m.variants}
    for segment in segments:
        kind = segment.kind
        variant = variants.get((kind.model, kind.variant))
        shape = kind.pool.type.shape(kind.pool.type.geometry.kind(kind.profile))
        if variant is None or variant.profile.batch(shape, batch_size, processes) is None:
            return False
    return True


def _worth(
    change: _Change, serving: Iterable[Segment], models: Sequence[Model]
) -> tuple[float, float]:
    """Prefer what leaves the tightest model most capacity, then what adds most."""
    leaving = {segment.segment_id for segment in change.stop}
    left = _capacity((s for s in serving if s.segment_id not in leaving), models)
    gain = sum(s.kind.throughput_rps for s in change.start)
    return min(left.values(), default=0.0), gain


def _capacity(serving: Iterable[Segment], models: Sequence[Model]) -> Mapping[str, float]:
    """Return throughput over demand, by model."""
    rates = dict.fromkeys((model.name for model in models), 0.0)
    for segment in serving:
        if segment.kind.model in rates:
            rates[segment.kind.model] += segment.kind.throughput_rps
    return {
        model.name: rates[model.name] / model.demand_rps if model.demand_rps else float("inf")
        for model in models
    }


def _starts(segments: Iterable[Segment]) -> tuple[StartSegment, ...]:
    return tuple(StartSegment(segment) for segment in segments)


def _stops(segments: Iterable[Segment]) -> tuple[StopSegment, ...]:
    return tuple(StopSegment(segment.segment_id, segment.gpu_uuid) for segment in segments)


def _ordered(*steps: Iterable[Action]) -> tuple[tuple[Action, ...], ...]:
    return tuple(step for step in map(tuple, steps) if step)

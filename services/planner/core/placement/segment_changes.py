"""Changes from what runs to a plan, sorted by the room they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cinquefoil.gpuagent.v1.records import CreateSlice, DestroySlice, Placement
from services.kit.grouping import grouped
from services.planner.core.model import Gpu, Model, Segment, variants_of
from services.planner.core.placement.actions import Action, StartSegment, StopSegment


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """Changes that belong together. Attributes: segments out, slices out and in, segments in."""

    stop: tuple[Segment, ...] = ()
    destroy: tuple[DestroySlice, ...] = ()
    create: tuple[CreateSlice, ...] = ()
    start: tuple[Segment, ...] = ()

    def __add__(self, other: SegmentChange) -> SegmentChange:
        return SegmentChange(
            self.stop + other.stop,
            self.destroy + other.destroy,
            self.create + other.create,
            self.start + other.start,
        )

    @property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """Actions of the change: first break, then make."""
        return ordered(stops(self.stop), self.destroy, self.create, starts(self.start))


@dataclass(frozen=True, slots=True)
class Bridge:
    """A segment that serves during a rollout alone. Attributes: it, and the slice made for it."""

    segment: Segment
    slice_needed: CreateSlice | None


@dataclass(slots=True)
class SegmentChanges:
    """All changes of a plan.

    Attributes:
        create: Slices for which there is room.
        warm: Segments that can start before any other stops.
        relieved: Segments whose place others of `warm` take, of the same queue.
        rebuild: Changes that must break before they make.
        surplus: Segments that nothing replaces in their place.
        bridges: Segments that start with `warm`, and stop with `surplus`.
    """

    create: list[CreateSlice] = field(default_factory=list)
    warm: list[Segment] = field(default_factory=list)
    relieved: list[Segment] = field(default_factory=list)
    rebuild: list[SegmentChange] = field(default_factory=list)
    surplus: list[Segment] = field(default_factory=list)
    bridges: list[Bridge] = field(default_factory=list)


def sort_changes(
    gpus: Sequence[Gpu],
    running: Sequence[Segment],
    target: Sequence[Segment],
    models: Sequence[Model],
) -> SegmentChanges:
    """Compare GPU by GPU; the arguments are those of `rollout.plan_rollout`."""
    changes = SegmentChanges()
    kept = {segment.segment_id for segment in running} & {each.segment_id for each in target}
    leaving = _by_gpu(segment for segment in running if segment.segment_id not in kept)
    coming = _by_gpu(segment for segment in target if segment.segment_id not in kept)
    standing = _by_gpu(running)
    wanted = _by_gpu(target)
    joined = _joined([*leaving.values(), *coming.values()])
    for uuids in map(sorted, joined):
        old = dict.fromkeys(each for uuid in uuids for each in leaving.get(uuid, ()))
        new = dict.fromkeys(each for uuid in uuids for each in coming.get(uuid, ()))
        _add_slice(changes, list(old), list(new), models)
    apart = {gpu for uuids in joined for gpu in uuids}
    for gpu in gpus:
        if gpu.uuid in apart or (gpu.uuid not in leaving and gpu.uuid not in coming):
            continue
        site = _Site(
            gpu,
            existing=frozenset(gpu.slices) | _slots(standing.get(gpu.uuid, ())),
            wanted=_slots(wanted.get(gpu.uuid, ())),
            leaving=tuple(leaving.get(gpu.uuid, ())),
            coming=tuple(coming.get(gpu.uuid, ())),
        )
        site.sort(changes, models)
    return changes


def _joined(changing: Iterable[Sequence[Segment]]) -> list[set[str]]:
    """Return the sets of GPUs that change together: those of segments that hold several."""
    found: list[set[str]] = []
    for segment in dict.fromkeys(each for here in changing for each in here if each.peers):
        uuids = {*segment.gpu_uuids}
        touched = [each for each in found if each & uuids]
        found = [each for each in found if not each & uuids]
        found.append(uuids.union(*touched))
    return found


@dataclass(frozen=True, slots=True)
class _Site:
    """One GPU. Attributes: existing and wanted slices; segments to stop and to start."""

    gpu: Gpu
    existing: frozenset[Placement]
    wanted: frozenset[Placement]
    leaving: tuple[Segment, ...]
    coming: tuple[Segment, ...]

    def sort(self, changes: SegmentChanges, models: Sequence[Model]) -> None:
        """Add this GPU's changes."""
        overlapped: set[Placement] = set()
        for create, destroy in self._components():
            overlapped |= destroy
            self._add_component(changes, create, destroy)
        for slot in sorted(self.existing - overlapped):
            old = [segment for segment in self.leaving if segment.placement == slot]
            new = [segment for segment in self.coming if segment.placement == slot]
            _add_slice(changes, old, new, models)

    def _components(self) -> Iterator[tuple[set[Placement], set[Placement]]]:
        """Yield groups of slices to create, with the existing slices that overlap them."""
        span = self.gpu.pool.type.geometry.span
        missing = self.wanted - self.existing
        groups: list[set[Placement]] = []
        end = 0
        for slot in sorted(missing | self.existing, key=lambda each: span(each).start):
            if span(slot).start >= end:  # all earlier ones end before it begins
                groups.append(set())
            groups[-1].add(slot)
            end = max(end, span(slot).stop)
        for slots in groups:
            if create := slots & missing:
                yield create, slots - missing

    def _add_component(
        self, changes: SegmentChanges, create: set[Placement], destroy: set[Placement]
    ) -> None:
        uuid = self.gpu.uuid
        change = SegmentChange(
            stop=tuple(segment for segment in self.leaving if segment.placement in destroy),
            destroy=tuple(DestroySlice(uuid, slot) for slot in sorted(destroy)),
            create=tuple(CreateSlice(uuid, slot) for slot in sorted(create)),
            start=tuple(segment for segment in self.coming if segment.placement in create),
        )
        if destroy:
            changes.rebuild.append(change)
        else:
            changes.create += change.create
            changes.warm += change.start


def _add_slice(
    changes: SegmentChanges, old: list[Segment], new: list[Segment], models: Sequence[Model]
) -> None:
    served = {segment.kind.queue for segment in new}
    if not new:
        changes.surplus += old
    elif not old:
        changes.warm += new
    elif served.issuperset(s.kind.queue for s in old) and _fit_together([*old, *new], models):
        changes.warm += new
        changes.relieved += old
    else:
        changes.rebuild.append(SegmentChange(stop=tuple(old), start=tuple(new)))


def _fit_together(segments: Sequence[Segment], models: Sequence[Model]) -> bool:
    """Return whether all of these fit into the memory of their slice together.

    Conservative: requires that each variant could host all processes with the largest batch.
    """
    if len({frozenset(segment.gpu_uuids) for segment in segments}) > 1:
        return False
    processes = sum(segment.kind.processes for segment in segments)
    batch_size = max(segment.kind.batch_size for segment in segments)
    variants = variants_of(models)
    for segment in segments:
        kind = segment.kind
        variant = variants.get((kind.model, kind.variant))
        slice_kind = kind.pool.type.geometry.kind(kind.profile)
        shape = kind.pool.type.shape(slice_kind, kind.gpus)
        if variant is None or kind.stage.index >= len(variant.stages):
            return False
        if variant.stages[kind.stage.index][1].batch(shape, batch_size, processes) is None:
            return False
    return True


def _by_gpu(segments: Iterable[Segment]) -> dict[str, list[Segment]]:
    return grouped((uuid, segment) for segment in segments for uuid in segment.gpu_uuids)


def _slots(segments: Iterable[Segment]) -> frozenset[Placement]:
    return frozenset(segment.placement for segment in segments)


def starts(segments: Iterable[Segment]) -> tuple[StartSegment, ...]:
    """Return the actions that start `segments`."""
    return tuple(StartSegment(segment) for segment in segments)


def stops(segments: Iterable[Segment]) -> tuple[StopSegment, ...]:
    """Return the actions that stop `segments`."""
    return tuple(StopSegment(segment.segment_id, segment.gpu_uuid) for segment in segments)


def ordered(*steps: Iterable[Action]) -> tuple[tuple[Action, ...], ...]:
    """Return actions by order, without empty steps."""
    return tuple(step for step in map(tuple, steps) if step)

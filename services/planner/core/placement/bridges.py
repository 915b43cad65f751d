"""Bridges: segments on free room that serve while a model's own are rebuilt.

Where a change must break before it makes, its model has less capacity for as long as workers take
to start: for a large network half a minute. A bridge starts before, beside what runs, on room that
neither what runs nor the plan takes (a GPU that stays empty, mostly), and goes with the surplus.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cinquefoil.gpuagent.v1.records import CreateSlice, Placement
from services.kit.grouping import grouped
from services.planner.core.model import Gpu, Queue, Segment, SegmentKind
from services.planner.core.placement.placement import clocks
from services.planner.core.placement.segment_changes import Bridge


@dataclass(frozen=True, slots=True)
class BridgeRoom:
    """Where bridges may be.

    Attributes:
        gpus: GPUs that plans may use, with existing slices.
        new_id: Returns an unused segment id.
    """

    gpus: Sequence[Gpu]
    new_id: Callable[[], str]


def bridges(
    room: BridgeRoom,
    running: Sequence[Segment],
    target: Sequence[Segment],
    kinds: Sequence[SegmentKind],
    missing_rps: Mapping[Queue, float],
) -> Iterator[Bridge]:
    """Yield segments that make up for missing capacity, as far as there is room.

    Args:
        room: Where they may be.
        running: Segments that run.
        target: Segments of the plan.
        kinds: What bridges may be, best first; those of several GPUs are left out.
        missing_rps: Capacity to make up for by queue, req/s.
    """
    wanted_mhz = clocks(target)
    taken = grouped(
        (uuid, each.placement) for each in (*running, *target) for uuid in each.gpu_uuids
    )
    usable = [gpu for gpu in room.gpus if gpu.clock_mhz == wanted_mhz.get(gpu.uuid, 0)]
    for queue, lacking_rps in missing_rps.items():
        wanted = [kind for kind in kinds if kind.queue == queue and kind.gpus == 1]
        rps = lacking_rps
        while rps > 0 and (site := next(_sites(wanted, usable, taken), None)):
            gpu, kind, placement = site
            taken.setdefault(gpu.uuid, []).append(placement)
            missing = None if placement in gpu.slices else CreateSlice(gpu.uuid, placement)
            segment = Segment(room.new_id(), kind, gpu.node, gpu.uuid, placement, share=0.0)
            yield Bridge(segment, missing)
            rps -= kind.throughput_rps


def _sites(
    kinds: Iterable[SegmentKind],
    gpus: Sequence[Gpu],
    taken: Mapping[str, Collection[Placement]],
) -> Iterator[tuple[Gpu, SegmentKind, Placement]]:
    """Yield where a segment of any kind has room, GPUs in use first."""
    for kind in kinds:
        for gpu in sorted(gpus, key=lambda each: each.uuid not in taken):
            if gpu.pool == kind.pool and gpu.clock_mhz in {0, kind.clock_mhz}:
                for start in gpu.pool.type.geometry.kind(kind.profile).starts:
                    placement = Placement(kind.profile, start)
                    if _has_room(gpu, placement, taken.get(gpu.uuid, ())):
                        yield gpu, replace(kind, clock_mhz=gpu.clock_mhz), placement


def _has_room(gpu: Gpu, placement: Placement, taken: Collection[Placement]) -> bool:
    """Return whether a slice exists unused, or can be created beside all that exist or come."""
    geometry = gpu.pool.type.geometry
    if any(geometry.overlap(placement, each) for each in taken):
        return False
    if placement in gpu.slices:
        return True
    return not any(geometry.overlap(placement, each) for each in gpu.slices) and not any(
        geometry.problem({*layout, placement}) for layout in (gpu.slices, taken)
    )

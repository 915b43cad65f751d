"""From a node's state to the desired state: actions in an order without conflicts. Pure.

What is as desired, a slice by size and start, a segment by all of its spec, is in no action. The
rest goes through these groups, all GPUs together:

1. clocks rise; slices on which nothing runs, and nothing will, go
2. new slices come where there is room, new segments start there: make before break
3. old segments stop, their slices go, MIG modes change
4. the remaining slices come, the remaining segments start
5. clocks fall
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from cinquefoil.gpuagent.v1.records import (
    CreateSlice,
    DesiredGpu,
    DestroySlice,
    LockClock,
    Placement,
    SegmentSpec,
    SetMigMode,
    StartSegment,
    StopSegment,
)
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Action, Node, Transaction
from services.kit.errors import InvalidArgument, NotFound
from services.kit.mig import WHOLE

STOP_GRACE: Final = timedelta(seconds=10)
"""Time that accepted requests may take when a segment stops."""


def reconcile(desired: Sequence[DesiredGpu], node: Node) -> Transaction:
    """Return the transaction that leads from `node`, as read back, to `desired`.

    GPUs that are not named are left alone.

    Raises:
        InvalidArgument: A GPU, slice or segment twice, or one that the GPU cannot have.
        NotFound: The node has no such GPU.
    """
    _check(desired, node)
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    ways = [_way(each, gpus[each.gpu_uuid], node) for each in desired]
    groups = (tuple(action for way in ways for action in way[number]) for number in range(_GROUPS))
    return Transaction(tuple(filter(None, groups)))


def gaps(transaction: Transaction, node: Node) -> tuple[str, ...]:
    """Return the models with fewer segments in between than before and after, by name."""
    model_of = {each.spec.segment_id: each.spec.model for each in node.segments}
    count = Counter(model_of.values())
    first, least = Counter(count), Counter(count)
    for group in transaction.groups:
        for action in group:
            if isinstance(action, StopSegment) and action.segment_id in model_of:
                count[model_of[action.segment_id]] -= 1
        for model in count:
            least[model] = min(least[model], count[model])
        count.update(action.spec.model for action in group if isinstance(action, StartSegment))
    return tuple(sorted(m for m in count if least[m] < min(first[m], count[m])))


# ---- one GPU -----------------------------------------------------------------------------------

_GROUPS: Final = 9
_Way = tuple[tuple[Action, ...], ...]


def _way(desired: DesiredGpu, gpu: GpuInfo, node: Node) -> _Way:
    """Return the groups for one GPU; every GPU has as many, so that they can be joined."""
    running = [each.spec for each in node.segments if each.spec.gpu_uuid == gpu.uuid]
    start = [spec for spec in desired.segments if spec not in running]
    stop = [spec for spec in running if spec not in desired.segments]
    switches = desired.mig_enabled is not None and desired.mig_enabled != gpu.mig_enabled
    have = [placement for placement, _ in gpu.slices if placement.profile != WHOLE]
    mig = desired.mig_enabled if desired.mig_enabled is not None else gpu.mig_enabled
    want = desired.slices if mig else ()
    destroy = [each for each in have if each not in want or switches]
    create = [each for each in want if each not in have or switches]
    occupied = {spec.placement for spec in running}
    idle = [each for each in destroy if each not in occupied]
    early = [] if switches else _fitting(gpu, [each for each in have if each not in idle], create)
    whole = () if gpu.mig_enabled or switches else (Placement(WHOLE, 0),)
    ready = {*early, *(each for each in have if each not in destroy), *whole}
    warm = [spec for spec in start if spec.placement in ready - occupied]
    rising, falling = _clock(desired, gpu, node)
    return (
        (*rising, *(DestroySlice(gpu.uuid, each) for each in idle)),
        tuple(CreateSlice(gpu.uuid, each) for each in early),
        tuple(StartSegment(spec) for spec in warm),
        tuple(StopSegment(spec.segment_id, STOP_GRACE) for spec in stop),
        tuple(DestroySlice(gpu.uuid, each) for each in destroy if each not in idle),
        (SetMigMode(gpu.uuid, mig),) if switches else (),
        tuple(CreateSlice(gpu.uuid, each) for each in create if each not in early),
        tuple(StartSegment(spec) for spec in start if spec not in warm),
        falling,
    )


def _fitting(
    gpu: GpuInfo, there: Iterable[Placement], wanted: Iterable[Placement]
) -> list[Placement]:
    """Return those of `wanted` that fit beside what is there, in their order."""
    taken = list(there)
    found = []
    for placement in wanted:
        if not gpu.model.geometry.problem([*taken, placement]):
            taken.append(placement)
            found.append(placement)
    return found


def _clock(
    desired: DesiredGpu, gpu: GpuInfo, node: Node
) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """Return what to do first where the clock rises, and last where it falls."""
    held_mhz = node.clocks.held_mhz.get(gpu.uuid, 0)
    if desired.clock_mhz is None or desired.clock_mhz == held_mhz:
        return (), ()
    lock = LockClock(gpu.uuid, desired.clock_mhz)
    rises = (desired.clock_mhz or math.inf) > (held_mhz or math.inf)
    return ((lock,), ()) if rises else ((), (lock,))


# ---- what cannot be ----------------------------------------------------------------------------


def _check(desired: Sequence[DesiredGpu], node: Node) -> None:
    named = [each.gpu_uuid for each in desired]
    _once(named, "gpus.gpu_uuid")
    _once((spec.segment_id for each in desired for spec in each.segments), "gpus.segments")
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    for each in desired:
        if each.gpu_uuid not in gpus:
            raise NotFound(f"this node has no GPU {each.gpu_uuid!r}", field="gpus.gpu_uuid")
        _check_gpu(each, gpus[each.gpu_uuid])
        for spec in each.segments:
            _check_identity(spec, node)


def _check_gpu(desired: DesiredGpu, gpu: GpuInfo) -> None:
    uuid = gpu.uuid
    mig = gpu.mig_enabled if desired.mig_enabled is None else desired.mig_enabled
    # What a GPU can be cut into is known in its present mode only.
    problem = gpu.model.geometry.problem(desired.slices) if mig and gpu.mig_enabled else ""
    if problem:
        raise InvalidArgument.at("gpus.slices", f"{uuid}: {problem}")
    if desired.clock_mhz:
        gpu.model.check_clock(desired.clock_mhz)
    places = desired.slices if mig else (Placement(WHOLE, 0),)
    _once((f"{spec.placement} of {uuid}" for spec in desired.segments), "gpus.segments.placement")
    for spec in desired.segments:
        if spec.gpu_uuid != uuid:
            raise InvalidArgument(
                f"gpus.segments: {spec.segment_id} is listed under {uuid}, but says "
                f"{spec.gpu_uuid}",
                field="gpus.segments.gpu_uuid",
            )
        if spec.placement not in places:
            raise InvalidArgument(
                f"gpus.segments: {spec.segment_id} needs {spec.placement}, which is not among the "
                f"slices of {uuid}: {', '.join(map(str, places)) or 'none'}",
                field="gpus.segments.placement",
            )


def _check_identity(spec: SegmentSpec, node: Node) -> None:
    """A segment's id is its own over time: what runs under it is this, or the request is wrong."""
    for segment in node.segments:
        if segment.spec.segment_id == spec.segment_id and segment.spec != spec:
            raise InvalidArgument(
                f"gpus.segments: {spec.segment_id} runs already, and is another; give the new one "
                "an id of its own",
                field="gpus.segments.segment_id",
            )


def _once(names: Iterable[str], field: str) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InvalidArgument.at(field, f"{twice} is named twice")

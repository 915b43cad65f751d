"""The safe order from what runs to a plan: create, warm, shift load, drain, destroy.

Three kinds of change, in this order:

1. *grow*: changes that need no occupied room. Free slices are created; new segments start, beside
   the old one where a slice changes its variant and both fit (make before break), and so do
   bridges, where what follows would leave a model less than its demand.
2. *rebuild*: changes that need room. Old and new placements of one GPU that overlap form a
   component; its segments drain, its slices go, the new ones come. A slice that changes its model
   counts as one too. As many components at a time as leave every model its demand; if not even one
   does, the one that leaves most.
3. *shrink*: segments that are no longer needed, and bridges, serve until everything else is done.

Clocks rise first of all and fall last of all: capacity is never below that at the lower clock.
Workers keep running meanwhile.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cinquefoil.gpuagent.v1.records import DestroySlice, LockClock
from services.kit.profiles.core.language import TokenProfile
from services.planner.core.model import (
    Gpu,
    Model,
    Queue,
    Segment,
    SegmentKind,
    queue_of,
    variants_of,
)
from services.planner.core.placement.actions import Rollout, Stage
from services.planner.core.placement.bridges import BridgeRoom, bridges
from services.planner.core.placement.placement import clocks
from services.planner.core.placement.segment_changes import (
    SegmentChange,
    SegmentChanges,
    ordered,
    sort_changes,
    starts,
)

QueueRates = Mapping[Queue, float]
"""Throughput over the model's demand by queue."""

ROUNDING = 1e-9


def plan_rollout(
    gpus: Sequence[Gpu],
    running: Sequence[Segment],
    target: Sequence[Segment],
    models: Sequence[Model],
    spare: BridgeRoom | None = None,
) -> Rollout:
    """Return the stages from `running` to `target`.

    Args:
        gpus: The fleet, with existing slices.
        running: Running segments; those whose id is in `target` are kept as they are.
        target: Segments to run; valid layouts.
        models: Models with their demand and variants.
        spare: Where bridges may be; None: there are none.
    """
    changes = sort_changes(gpus, running, target, models)
    found, least = _staged(changes, gpus, running, target, models)
    missing_rps = _missing_rps(_rates(running, models), least, models) if spare else {}
    if spare is None or not missing_rps:
        return found
    kinds = _startable(changes.rebuild, models)
    changes.bridges += bridges(spare, running, target, kinds, missing_rps)
    return _staged(changes, gpus, running, target, models)[0] if changes.bridges else found


def _staged(
    changes: SegmentChanges,
    gpus: Sequence[Gpu],
    running: Sequence[Segment],
    target: Sequence[Segment],
    models: Sequence[Model],
) -> tuple[Rollout, QueueRates]:
    """Return the stages of changes, and the least capacity over demand of each queue."""
    rising, falling = _clock_changes(gpus, target)
    serving = {segment.segment_id: segment for segment in running}
    crossing = [bridge.segment for bridge in changes.bridges]
    slices = [bridge.slice_needed for bridge in changes.bridges if bridge.slice_needed]
    create, warm = (*changes.create, *slices), (*changes.warm, *crossing)
    stages = [Stage(frozenset(serving), ordered(rising, create, starts(warm)))]
    raised = {action.gpu_uuid for action in rising}
    faster = (each for each in target if each.gpu_uuid in raised and each.segment_id in serving)
    serving |= {each.segment_id: each for each in (*faster, *warm)}
    relieved = {segment.segment_id for segment in changes.relieved}
    rates = _rates((s for s in serving.values() if s.segment_id not in relieved), models)
    least = dict.fromkeys(rates, math.inf)
    for change in (
        SegmentChange(stop=tuple(changes.relieved)),
        *_batches(changes.rebuild, rates, models),
        SegmentChange(
            stop=(*changes.surplus, *crossing),
            destroy=tuple(DestroySlice(each.gpu_uuid, each.placement) for each in slices),
        ),
    ):
        for segment in change.stop:
            del serving[segment.segment_id]
        stages.append(Stage(frozenset(serving), change.actions))
        least = _least(least, _rates(serving.values(), models))
        serving |= {segment.segment_id: segment for segment in change.start}
    if falling:
        stages.append(Stage(frozenset(serving), ordered(falling)))
        least = _least(least, _rates(target, models))
    by_model = {model: rate for (model, _, stage), rate in least.items() if not stage}
    kept = tuple(stage for stage in stages if stage.actions)
    return Rollout(kept, by_model, tuple(crossing)), least


def _missing_rps(
    before: QueueRates, least: QueueRates, models: Sequence[Model]
) -> dict[Queue, float]:
    """Return what queues that were served lack at the worst moment of a rollout, req/s.

    Models that generate text are left out: answers may outlast a rollout, and would be cut short.
    """
    demand_rps = {model.name: model.demand_rps for model in models if not _generates(model)}
    lacking = {queue: min(1.0, rate) - least[queue] for queue, rate in before.items()}
    return {
        queue: lack * demand_rps[queue[0]]
        for queue, lack in lacking.items()
        if lack > ROUNDING and demand_rps.get(queue[0])
    }


def _startable(rebuild: Sequence[SegmentChange], models: Sequence[Model]) -> list[SegmentKind]:
    """Return the kinds that changes start, then those that they stop and that are still served."""
    known = variants_of(models)
    started = (each.kind for change in rebuild for each in change.start)
    stopped = (each.kind for change in rebuild for each in change.stop)
    found = dict.fromkeys((*started, *stopped))
    return [kind for kind in found if (kind.model, kind.variant) in known]


def _generates(model: Model) -> bool:
    return any(
        isinstance(profile, TokenProfile)
        for variant in model.variants
        for _, profile in variant.stages
    )


def _clock_changes(
    gpus: Sequence[Gpu], target: Iterable[Segment]
) -> tuple[list[LockClock], list[LockClock]]:
    """Return the clocks that rise and those that fall; a GPU without segments is unlocked."""
    wanted_mhz = clocks(target)
    rising: list[LockClock] = []
    falling: list[LockClock] = []
    for gpu in gpus:
        clock_mhz = wanted_mhz.get(gpu.uuid, 0)
        if clock_mhz != gpu.clock_mhz:
            rises = (clock_mhz or math.inf) > (gpu.clock_mhz or math.inf)
            (rising if rises else falling).append(LockClock(gpu.uuid, clock_mhz))
    return rising, falling


def _least(one: QueueRates, other: QueueRates) -> dict[Queue, float]:
    return {name: min(one[name], rate) for name, rate in other.items()}


def _batches(
    rebuild: Sequence[SegmentChange], rates: QueueRates, models: Sequence[Model]
) -> Iterator[SegmentChange]:
    """Yield the changes in the order to carry them out, combined where that is safe."""
    losses = {change: _rates(change.stop, models) for change in rebuild}
    gains = {change: _rates(change.start, models) for change in rebuild}
    now = dict(rates)
    left = list(rebuild)
    while left:
        left.sort(key=lambda each: _urgency(now, losses[each], gains[each]), reverse=True)
        during = dict(now)
        batch: list[SegmentChange] = []
        for change in left:
            after = {name: during[name] - lost for name, lost in losses[change].items()}
            if not batch or all(after[name] >= min(1.0, during[name]) - ROUNDING for name in after):
                batch.append(change)
                during |= after
        taken = set(batch)
        left = [change for change in left if change not in taken]
        for change in batch:
            for name in now:
                now[name] += gains[change].get(name, 0.0) - losses[change].get(name, 0.0)
        yield sum(batch, start=SegmentChange())


def _urgency(now: QueueRates, loss: QueueRates, gain: QueueRates) -> tuple[float, float, float]:
    """Prefer changes that leave every model its demand, then help the tightest, then add most.

    Args:
        now: Serving capacity by queue.
        loss: Capacity that the change removes while it lasts.
        gain: Capacity that it adds at its end.
    """
    left = min((now[name] - lost for name, lost in loss.items() if lost), default=1.0)
    tightest = min((now[name] for name, added in gain.items() if added), default=math.inf)
    return min(1.0, left), -tightest, sum(gain.values())


def _rates(segments: Iterable[Segment], models: Sequence[Model]) -> dict[Queue, float]:
    """Return segments' capacity over the model's demand, by queue.

    Later stages of a pipeline have queues of their own, which must not run dry either.
    """
    demand_rps = {model.name: model.demand_rps for model in models}
    served_rps = dict.fromkeys(_queues(models), 0.0)
    for segment in segments:
        if segment.kind.queue in served_rps:
            served_rps[segment.kind.queue] += segment.kind.throughput_rps
    return {
        queue: rps / demand_rps[queue[0]] if demand_rps[queue[0]] else math.inf
        for queue, rps in served_rps.items()
    }


def _queues(models: Iterable[Model]) -> Iterator[Queue]:
    for model in models:
        yield queue_of(model.name, "", 0)
        for variant in model.variants:
            for stage, _ in variant.stages[1:]:
                yield queue_of(model.name, variant.name, stage.index)

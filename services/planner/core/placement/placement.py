"""Placement of segments on slices of GPUs, with the fewest changes."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Objective
from services.kit.errors import FailedPrecondition
from services.kit.grouping import grouped, summed
from services.planner.core.model import Configuration, Gpu, Pool, Problem, Segment, SegmentKind
from services.planner.core.placement.layout_assignment import LayoutAtClock, Running, assign_layouts
from services.planner.core.placement.node_groups import UNCUT, Groups, assign_groups
from services.planner.core.placement.power_aware import (
    Sensitivities,
    SlicePlace,
    assign,
    sensitivities,
)
from services.planner.core.placement.separation import Quotas, Separation
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import Row, row
from services.planner.core.problem.score import active_w
from services.planner.core.problem.site_power import site_w


def place(
    problem: Problem, configuration: Configuration, new_id: Callable[[], str]
) -> tuple[Segment, ...]:
    """Return the segments of a plan.

    Segments of one kind are interchangeable, and so are slices of one kind: with given layouts,
    running segments stay, then existing slices change their segment, then slices are created.

    Args:
        problem: Its running segments and existing slices are kept where possible.
        configuration: The configuration to place.
        new_id: Returns an unused segment id; segments that stay keep theirs.

    Returns:
        Segments in order of the problem's GPUs and of placement; those of one GPU have one clock
        (see `clocks`). Shares follow the configuration's loads, equal among equal segments; those
        of a queue sum to 1.

    Raises:
        FailedPrecondition: The configuration does not fit on the fleet.

    Segments of models that must survive a loss are apart, as far as layouts allow.
    """
    needed = gpus_needed(problem, configuration.segments)
    if needed is None:
        raise FailedPrecondition("the configuration's slices do not fit on the fleet")
    running = _running(problem)
    known = sensitivities(problem) if problem.placement == "power_aware" else None
    separation = Separation.of(problem, configuration.segments)
    groups = assign_groups(problem, configuration.segments, running, separation)
    held = {uuid for uuids in groups for uuid in uuids}
    spots: dict[SlicePlace, SegmentKind] = {}
    spare_w = _spare_w(problem, configuration, needed)
    nodes = {pool: len({gpu.node for gpu in problem.gpus if gpu.pool == pool}) for pool in needed}
    for pool, fewest in sorted(needed.items(), key=lambda each: nodes[each[0]]):  # least choice
        gpus = {gpu.uuid: gpu for gpu in problem.gpus if gpu.pool == pool and gpu.uuid not in held}
        wanted = {
            kind: n
            for kind, n in configuration.segments.items()
            if kind.pool == pool and kind.gpus == 1
        }
        if not wanted:
            continue
        left = fewest - (problem.pools[pool] - len(gpus))
        most = _most_gpus(problem.objective, pool, left, len(gpus), len(gpus.keys() & running))
        use_w = pool.pue * pool.type.use_power_w
        if pool.site in spare_w and use_w > 0:
            most = min(most, left + int(spare_w[pool.site] / use_w))
            spare_w[pool.site] -= (most - left) * use_w
        sites, quotas = assign_layouts(gpus.values(), running, wanted, separation, most_gpus=most)
        apart = _apart(sites, gpus, running, wanted, quotas)
        rest = Counter(wanted) - Counter(apart.values())
        spots |= apart | _fill(sites, gpus, running, rest, known, apart)
    return tuple(_segments(problem, configuration, spots, groups, new_id))


def _spare_w(
    problem: Problem, configuration: Configuration, in_use: Mapping[Pool, int]
) -> dict[str, float]:
    """Return what a configuration on the fewest GPUs leaves of each site's power budget, W, >= 0.

    Each further GPU in use draws its context's power.
    """
    drawn_w = site_w(problem, in_use, active_w(configuration))
    return {site.name: max(0.0, site.limit_w - drawn_w[site.name]) for site in problem.sites}


def _most_gpus(objective: Objective, pool: Pool, fewest: int, owned: int, in_use: int) -> int:
    """Return the largest number of GPUs of a pool to place segments on.

    Where a GPU without segments is parked or counted: the fewest that hold them. Where only a
    context is saved: no GPU that is free now is added, but running segments stay in place.
    """
    goals = objective.goals
    if objective.park_idle_gpus or goals.fewest_gpus > 0:
        return fewest
    saves = goals.clover * objective.weight_of_carbon * pool.type.use_power_w > 0
    return max(fewest, in_use) if saves else owned


def clocks(segments: Iterable[Segment]) -> dict[str, int]:
    """Return the SM clock of each GPU with segments, by UUID, MHz; 0: not lowered."""
    return {uuid: each.kind.clock_mhz for each in segments for uuid in each.gpu_uuids}


def _running(problem: Problem) -> Running:
    running: dict[str, dict[Placement, Row]] = {}
    rows: dict[SegmentKind, Row] = {}
    for segment in problem.running:
        what = rows.get(segment.kind) or rows.setdefault(segment.kind, row(segment.kind))
        for uuid in segment.gpu_uuids:
            running.setdefault(uuid, {})[segment.placement] = what
    return running


def _apart(
    sites: Mapping[str, LayoutAtClock],
    gpus: Mapping[str, Gpu],
    running: Running,
    wanted: Mapping[SegmentKind, int],
    quotas: Quotas,
) -> dict[SlicePlace, SegmentKind]:
    """Return the places of segments that have a quota: those that run there stay."""
    others = {row(kind) for kind in wanted} - {row(k) for each in quotas.values() for k in each}
    spots: dict[SlicePlace, SegmentKind] = {}
    for uuid, quota in quotas.items():
        layout, clock_mhz = sites[uuid]
        rows, left = {row(kind): kind for kind in quota}, Counter(quota)
        free: list[SlicePlace] = []
        for spot in ((uuid, slot) for slot in layout):
            stays = rows.get(what) if (what := _at(running, spot)) else None
            if stays is not None and left[stays]:
                spots[spot] = stays
                left[stays] -= 1
            else:
                free.append(spot)
        free.sort(
            key=lambda spot: (
                _at(running, spot) in others,
                _effort(gpus[spot[0]], spot[1], running, in_use=True),
            )
        )
        spots |= _least_change(free, left, {uuid: (layout, clock_mhz)}, running)
    return spots


def _fill(  # noqa: PLR0913, PLR0917  # a pool, and what is known of it
    sites: Mapping[str, LayoutAtClock],
    gpus: Mapping[str, Gpu],
    running: Running,
    wanted: Mapping[SegmentKind, int],
    known: Sensitivities | None,
    taken: Mapping[SlicePlace, SegmentKind],
) -> dict[SlicePlace, SegmentKind]:
    rows: dict[tuple[Row | None, int], SegmentKind] = {}
    rows |= {(row(kind), kind.clock_mhz): kind for kind in wanted}
    left = Counter(wanted)
    spots: dict[SlicePlace, SegmentKind] = {}
    free: list[SlicePlace] = []
    for spot in ((uuid, slot) for uuid, (layout, _) in sites.items() for slot in layout):
        if spot in taken:
            continue
        stays = rows.get((_at(running, spot), sites[spot[0]][1]))
        if stays is not None and left[stays]:
            spots[spot] = stays
            left[stays] -= 1
        else:
            free.append(spot)
    used = {uuid for uuid, _ in (*spots, *taken)}
    free.sort(key=lambda spot: _effort(gpus[spot[0]], spot[1], running, spot[0] in used))
    if known is not None:
        clock_mhz = {spot: sites[spot[0]][1] for spot in free}
        placed = {**taken, **spots}
        return spots | assign(clock_mhz, tuple(left.elements()), placed, known)
    return spots | _least_change(free, left, sites, running)


def _least_change(
    free: Iterable[SlicePlace],
    left: Counter[SegmentKind],
    sites: Mapping[str, LayoutAtClock],
    running: Running,
) -> dict[SlicePlace, SegmentKind]:
    stock: dict[tuple[str, int], dict[str, deque[SegmentKind]]] = {}
    for kind in left.elements():
        models = stock.setdefault((kind.profile, kind.clock_mhz), {})
        models.setdefault(kind.model, deque()).append(kind)
    spots: dict[SlicePlace, SegmentKind] = {}
    for spot in free:
        models = stock.get((spot[1].profile, sites[spot[0]][1]), {})
        if models:
            before = _at(running, spot)
            name = before[0] if before and before[0] in models else next(iter(models))
            spots[spot] = models[name].popleft()
            if not models[name]:
                del models[name]
    return spots


def _effort(
    gpu: Gpu, placement: Placement, running: Running, in_use: bool
) -> tuple[bool, bool, bool]:
    """Prefer slices that exist, then those without a segment, then GPUs in use."""
    overlap = gpu.pool.type.geometry.overlap
    crowded = any(overlap(placement, other) for other in running.get(gpu.uuid, ()))
    return placement not in gpu.slices, crowded, not in_use


def _at(running: Running, spot: SlicePlace) -> Row | None:
    uuid, placement = spot
    return running.get(uuid, {}).get(placement)


def _segments(
    problem: Problem,
    configuration: Configuration,
    spots: Mapping[SlicePlace, SegmentKind],
    groups: Groups,
    new_id: Callable[[], str],
) -> Iterator[Segment]:
    before: dict[str, dict[tuple[Placement, Row], str]] = {}
    rows = {kind: row(kind) for kind in configuration.segments}
    for segment in problem.running:
        what = rows.get(segment.kind) or rows.setdefault(segment.kind, row(segment.kind))
        there = before.setdefault(segment.gpu_uuid, {})
        there.setdefault((segment.placement, what), segment.segment_id)
    shares = shares_of(configuration)
    places = grouped((uuid, (placement, kind)) for (uuid, placement), kind in spots.items())
    peers = {first: rest for first, *rest in groups}
    places |= {uuids[0]: [(UNCUT, kind)] for uuids, kind in groups.items()}
    for gpu in problem.gpus:
        there = before.get(gpu.uuid, {})
        for placement, kind in sorted(places.get(gpu.uuid, ()), key=lambda each: each[0].start):
            yield Segment(
                segment_id=there.get((placement, rows[kind])) or new_id(),
                kind=kind,
                node=gpu.node,
                gpu_uuid=gpu.uuid,
                placement=placement,
                share=shares[kind],
                peers=tuple(peers.get(gpu.uuid, ())),
            )


def shares_of(configuration: Configuration) -> dict[SegmentKind, float]:
    """Return the share of its queue's load for each segment of a kind."""
    segments, load_rps = configuration.segments, configuration.load_rps
    total_rps = summed((kind.queue, load_rps.get(kind, 0.0)) for kind in segments)
    instances = summed((kind.queue, count) for kind, count in segments.items())
    return {
        kind: load_rps.get(kind, 0.0) / total_rps[kind.queue] / count
        if total_rps[kind.queue] > 0
        else 1.0 / instances[kind.queue]
        for kind, count in segments.items()
    }

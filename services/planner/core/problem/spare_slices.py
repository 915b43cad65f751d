"""Free slices put to use at no cost: of equally good configurations, the one with most capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from services.planner.core.model import Configuration, Pool, SegmentKind
from services.planner.core.problem.packing import gpus_needed
from services.planner.core.problem.pricing import Prices
from services.planner.core.problem.score import longest_loading_s, reconfiguration_points

MAX_GPUS = 32
"""Largest fleet in which slices are searched one by one; in a larger one load varies little."""

EQUAL_POINTS = 1e-9
"""Rounding error of floating point, points."""


def with_spare_slices(known: Prices, found: Configuration) -> Configuration:
    """Return a configuration with segments on free slices, for the fullest models first.

    Only kinds without batches are added, since fuller batches spend less energy, and only where
    neither a GPU nor a compute slice nor a start has a price. The objective stays the same, and the
    largest utilisation becomes as low as such slices allow.
    """
    small = len(known.problem.gpus) <= MAX_GPUS
    if not small or known.gpc_points or known.fewest_only:
        return found
    segments, load_rps = dict(found.segments), dict(found.load_rps)
    gpus = gpus_needed(known.problem, segments)
    while gpus is not None:
        added = _added(known, segments, load_rps, gpus)
        if added is None:
            break
        full, kind = added
        if kind != full:
            rooms = {each: known.usable_rps(each) for each in (full, kind)}
            counts = {full: segments[full], kind: segments.get(kind, 0) + 1}
            total_rps = load_rps[full] + load_rps.get(kind, 0.0)
            room_rps = sum(rooms[each] * count for each, count in counts.items())
            for each, count in counts.items():
                load_rps[each] = total_rps * rooms[each] * count / room_rps
        segments[kind] = segments.get(kind, 0) + 1
        gpus = gpus_needed(known.problem, segments)
    return replace(found, segments=segments, load_rps=load_rps)


def _added(
    known: Prices,
    segments: Mapping[SegmentKind, int],
    load_rps: Mapping[SegmentKind, float],
    gpus: Mapping[Pool, int],
) -> tuple[SegmentKind, SegmentKind] | None:
    """Return the fullest kind, and the kind of a segment that relieves it; None: there is none."""
    used = {
        kind: load_rps.get(kind, 0.0) / (count * known.usable_rps(kind))
        for kind, count in segments.items()
        if kind.model in known.models and known.usable_rps(kind) > 0
    }
    full = max(used, key=lambda kind: used[kind], default=None)
    if full is None or used[full] <= 0:
        return None
    for kind in _equals(known, full):
        more = {**segments, kind: segments.get(kind, 0) + 1}
        needed = gpus_needed(known.problem, more)
        if (
            needed is not None
            and (needed == gpus or not (known.gpu_points(kind.pool) or known.problem.sites))
            and reconfiguration_points(known, more) <= reconfiguration_points(known, segments)
            and (
                not known.loading_points
                or longest_loading_s(known, more) <= longest_loading_s(known, segments)
            )
        ):
            return full, kind
    return None


def _equals(known: Prices, full: SegmentKind) -> Iterator[SegmentKind]:
    """Yield the kinds that serve as `full` does with the same energy, `full` first."""
    if full.batch_size > 1 or full.stage.of > 1:
        return
    yield full
    points = known.load_points(full)
    for kind in known.problem.catalog:
        if (
            kind != full
            and kind.batch_size == 1
            and (kind.model, kind.variant) == (full.model, full.variant)
            and abs(known.load_points(kind) - points) <= EQUAL_POINTS
            and known.usable_rps(kind) > 0
        ):
            yield kind

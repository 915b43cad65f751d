"""Energy of one waiting request more: filled in between others, or on a replica of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from services.planner.core.model import Model, Pool, Segment, SegmentKind, Variant
from services.planner.core.problem.catalog import Place, measure, whole
from services.planner.core.problem.power_curve import FILLED, curve_of


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that may be powered for waiting work: a whole GPU at its best batch.

    Attributes:
        rate_rps: Throughput, req/s.
        request_j: Energy of a request, the GPU's power above that of a parked one included, J.
        usable_rps: Interactive load that a plan provides such a replica for, req/s.
    """

    rate_rps: float
    request_j: float
    usable_rps: float


def best_replica(
    model: Model, pools: Iterable[Pool], batch_sizes: Sequence[int], utilisation: float
) -> Replica | None:
    """Return the replica that answers waiting requests with the least energy; None: none fits.

    Args:
        model: The model; of its variants the most accurate that fits serves.
        pools: Where GPUs are parked.
        batch_sizes: Batch sizes that a plan may choose.
        utilisation: Part of a throughput that plans use.
    """
    found = [
        (request_j, kind)
        for pool in pools
        for variant in sorted(model.variants, key=lambda each: -each.accuracy)
        if not variant.pipeline and variant.gpus == 1
        for request_j, kind in _whole_kinds(model, variant, pool, batch_sizes)
    ]
    if not found:
        return None
    best = max(kind.accuracy for _, kind in found)
    request_j, kind = min(
        ((joules, kind) for joules, kind in found if kind.accuracy == best), key=lambda at: at[0]
    )
    return Replica(kind.throughput_rps, request_j, utilisation * kind.throughput_rps)


def _whole_kinds(
    model: Model, variant: Variant, pool: Pool, batch_sizes: Sequence[int]
) -> Iterator[tuple[float, SegmentKind]]:
    place = Place(model, variant, pool, whole(pool))
    for kind in measure(place, batch_sizes, 1):
        if kind.throughput_rps > 0:
            yield kind.energy_j + pool.type.context_power_w / kind.throughput_rps, kind


def room_of(
    model: Model, segments: Sequence[Segment], load_rps: float
) -> tuple[float, float, float]:
    """Return what a load leaves in segments: room, req/s, its marginal energy, J, and all, req/s.

    Args:
        model: The model.
        segments: Its segments, first stages only.
        load_rps: Interactive load, spread by throughput.
    """
    curves = [curve_of(model, each.kind) for each in segments]
    total_rps = sum(curve.most_rps for curve in curves)
    if total_rps <= 0:
        return 0.0, 0.0, 0.0
    used = min(load_rps / total_rps, FILLED)
    room_rps = (FILLED - used) * total_rps
    joules = sum(
        curve.marginal_j(used * curve.most_rps, FILLED * curve.most_rps)
        * (FILLED - used)
        * curve.most_rps
        for curve in curves
    )
    return room_rps, joules / room_rps if room_rps > 0 else 0.0, FILLED * total_rps

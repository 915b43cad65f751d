"""Power of a model's replicas by load: what one waiting request more costs, filled in or alone.

A segment that batches takes what has arrived, so that its batches grow with the load until
`batch = load * time of the batch`: a point of the curve for each batch size that was profiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from services.planner.core.model import Model, Pool, Segment, SegmentKind, Variant
from services.planner.core.problem.catalog import Place, measure, whole

FILLED = 0.85
"""Part of its throughput to which a segment is filled until routers have measured its room: the
rest keeps interactive requests' latency."""


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """Active power of a segment by load.

    Attributes:
        rates_rps: Loads, increasing, from 0.
        watts: Power above that of a GPU that computes nothing, at each, W.
    """

    rates_rps: tuple[float, ...]
    watts: tuple[float, ...]

    @property
    def most_rps(self) -> float:
        """Throughput, req/s."""
        return self.rates_rps[-1]

    def at(self, rate_rps: float) -> float:
        """Return the power at a load, W."""
        return float(np.interp(rate_rps, self.rates_rps, self.watts))

    def marginal_j(self, rate_rps: float, until_rps: float) -> float:
        """Return the energy of a request more between two loads, J."""
        more_rps = until_rps - rate_rps
        if more_rps <= 0:
            return 0.0
        return max(self.at(until_rps) - self.at(rate_rps), 0.0) / more_rps


def curve_of(model: Model, kind: SegmentKind) -> PowerCurve:
    """Return the curve of a segment that serves in one piece, or is a pipeline's first stage."""
    variant = next((each for each in model.variants if each.name == kind.variant), None)
    if variant is None or variant.pipeline:
        watts = kind.energy_j * kind.throughput_rps
        return PowerCurve((0.0, kind.throughput_rps), (0.0, watts))
    return _curve(model, variant, kind.pool, kind.profile, (kind.batch_size, kind.processes))


@lru_cache(maxsize=256)
def _curve(
    model: Model, variant: Variant, pool: Pool, profile: str, size: tuple[int, int]
) -> PowerCurve:
    batch_size, processes = size
    place = Place(model, variant, pool, pool.type.geometry.kind(profile))
    sizes = [2**power for power in range(batch_size.bit_length()) if 2**power < batch_size]
    points = {0.0: 0.0}
    for kind in measure(place, (*sizes, batch_size), processes):
        if kind.processes == processes:
            points[kind.throughput_rps] = kind.energy_j * kind.throughput_rps
    rates = tuple(sorted(points))
    return PowerCurve(rates, tuple(np.maximum.accumulate([points[rate] for rate in rates])))


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

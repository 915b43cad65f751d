"""The clock below which a segment's work takes more energy again.

mu-Serve (ATC'24) drops the clock for as long as objectives hold. But a lower clock draws less power
for longer: one request by itself takes least energy around half of a V100's highest clock, and at
the highest of a consumer GPU. Where requests share batches, slower batches are fuller, and it pays
to go lower.
"""

from collections.abc import Iterable
from functools import cache
from math import inf

import numpy as np

from services.gpuagent.clock_loop.core.decide import Partition
from services.gpuagent.core.batch_costs import CostCurve
from services.kit.profiles.core.clock_curve import ClockCurve


def floor(partitions: Iterable[Partition], ratios: tuple[float, ...], curve: ClockCurve) -> float:
    """Return the least clock that saves energy, of the segment that wants the highest.

    Args:
        partitions: The segments on a GPU. Where costs are not known, requests are taken to come
            one by one.
        ratios: Clocks that it supports, over its highest.
        curve: How it follows them; of segments whose costs are not known.

    Returns:
        Over the highest clock; 0: nothing runs.
    """
    return max((_most_efficient(each, ratios, curve) for each in partitions), default=0.0)


def _most_efficient(one: Partition, ratios: tuple[float, ...], curve: ClockCurve) -> float:
    segment = one.segment
    if segment.costs is None:
        return _by_curve(segment.sensitivity, ratios, curve)
    curves = segment.costs.curves
    best = min(
        curves,
        key=lambda each: (energy_j(each, one.rate_rps, segment.processes), -each.clock_ratio),
    )
    return best.clock_ratio


@cache
def _by_curve(sensitivity: float, ratios: tuple[float, ...], curve: ClockCurve) -> float:
    return curve.thriftiest(sensitivity, ratios)


def energy_j(curve: CostCurve, rate_rps: float, processes: int) -> float:
    """Return the active energy of one request at one clock, J; inf: that is too slow for the load.

    A batch holds what came during the one before: the size at which all processes together just
    keep up, but at least one request.
    """
    sizes = range(1, len(curve.latency_s) + 1)
    costs = [curve.at(size, processes) for size in sizes]
    keeps_up_rps = [
        size * processes / cost.latency_s for size, cost in zip(sizes, costs, strict=True)
    ]
    each_j = [cost.energy_j / size for size, cost in zip(sizes, costs, strict=True)]
    if rate_rps > keeps_up_rps[-1]:
        return inf
    return float(np.interp(rate_rps, keeps_up_rps, each_j))

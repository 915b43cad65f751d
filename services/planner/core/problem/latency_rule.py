"""The latency objective as a rule on load: how much of a model one segment may be given.

CLOVER's Eq. 5, p95 <= SLO, is about all segments of a model together: their queue is one. For a
model's demand it comes down to a number of segments that is enough, kind by kind. A segment then
counts as that part of what the demand needs, so that the rule is linear, and every strategy can
keep it. Segments of several kinds are judged together afterwards (`score`).
"""

from __future__ import annotations

import math
from functools import lru_cache

from services.kit.config import Objective
from services.planner.core.model import Model, SegmentKind
from services.planner.core.problem.queueing import (
    NEARLY_FULL,
    Station,
    late_share,
    late_share_bound,
)

GRID = 1.02
"""Demands are rounded up to a power of it, so that what was found for one serves its neighbours."""

MANY = 24
"""Processes that share a queue from which on the wait is short against a batch."""

LIGHT = 0.85
"""Utilisation up to which that holds: the wait in M/D/24 then exceeds a quarter of a service time
in less than 5 of 100 cases."""

LATE = 0.0499
"""Share of late requests for which the two shortcuts below hold."""

SPARSE = 0.25
"""Utilisation at which even one worker keeps 95 of 100 waits below its service time: M/D/1 has
(1 - u) e^u >= 0.95 up to u = 0.29; not used for higher percentiles."""

FINE = 128
"""Numbers of segments are distinguished to one part in it."""

MAX_TIMES = 16
"""Times the segments that the utilisation needs, beyond which more do not help."""


def keeps_percentile(objective: Objective) -> bool:
    """Return whether the percentile counts, or only the time of a batch."""
    return objective.latency_rule == "percentile"


def most_rps(objective: Objective, kind: SegmentKind) -> float:
    """Return what one segment may be given whatever the demand, at most, req/s."""
    rho = objective.max_utilisation
    limit = min(rho, NEARLY_FULL) if keeps_percentile(objective) else rho
    return limit * kind.throughput_rps


def admissible_rps(objective: Objective, model: Model, kind: SegmentKind) -> float:
    """Return what one segment may be given of a model's demand where it has peers enough, req/s.

    At most `most_rps`; less where the whole demand would need more
    segments of this kind to keep its percentile.

    Args:
        objective: Its `latency_rule` may have it that only a batch's time counts.
        model: Its demand and latency objective.
        kind: Of a segment; it keeps `catalog.in_time`.
    """
    usable_rps = most_rps(objective, kind)
    if not keeps_percentile(objective):
        return usable_rps
    stage = kind.stage
    time_s = model.slo_latency_s * stage.budget - stage.transfer_s
    if usable_rps <= 0 or model.demand_rps <= 0:
        return 0.0
    long = time_s >= 2 * kind.latency_s and model.slo_percentile <= 100.0 * (1.0 - LATE)
    processes = math.ceil(model.demand_rps / usable_rps) * kind.processes
    if long and objective.max_utilisation <= LIGHT and processes >= MANY:
        return usable_rps
    demand_rps = GRID ** math.ceil(math.log(model.demand_rps, GRID) - 1e-9)
    return min(usable_rps, _share_rps(kind, usable_rps, demand_rps, time_s, model.slo_percentile))


@lru_cache(maxsize=65536)
def _share_rps(
    kind: SegmentKind, usable_rps: float, demand_rps: float, time_s: float, percentile: float
) -> float:
    """Return a demand over the fewest segments that keep its percentile, req/s; 0: none do."""
    allowed = 1.0 - percentile / 100.0

    def keep(segments: int) -> bool:
        station = Station(kind, segments, demand_rps)
        surely = late_share_bound(station, time_s) <= allowed
        return surely or late_share([station], time_s) <= allowed

    sparse = allowed >= LATE and demand_rps <= SPARSE * kind.throughput_rps
    if sparse and time_s >= 2 * kind.latency_s:
        return usable_rps
    low = max(1, math.ceil(demand_rps / usable_rps - 1e-9))
    if keep(low):
        return usable_rps
    high, most = low + 1, MAX_TIMES * low + MAX_TIMES
    while not keep(high):
        low, high = high, 2 * high
        if high > most:
            return 0.0
    while high - low > max(1, high // FINE):
        middle = (low + high) // 2
        low, high = (low, middle) if keep(middle) else (middle, high)
    return demand_rps / high

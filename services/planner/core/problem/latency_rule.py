"""The latency objective as a linear rule: the most load that one segment may be given.

CLOVER's Eq. 5, p95 <= SLO, applies to all segments of a model together, as they share one queue.
For a given demand it amounts to a sufficient number of segments of each kind. Each segment then
counts as its part of the demand, so that the rule is linear and every strategy can keep it.
Segments of several kinds are judged together afterwards (`score`).
"""

from __future__ import annotations

import math
from functools import lru_cache

from cinquefoil.planner.v1.records import Dispersion
from services.kit.config import Objective
from services.planner.core.model import Model, SegmentKind
from services.planner.core.problem import text_rule
from services.planner.core.problem.queueing import late_share, late_share_bound
from services.planner.core.problem.stations import NEARLY_FULL, Station, on_grid

MAX_TIMES = 16
"""Factor on the segments that utilisation requires, beyond which more do not help."""


def keeps_percentile(objective: Objective) -> bool:
    """Return whether the percentile counts, or only a batch's time."""
    return objective.latency_rule == "percentile"


def most_rps(objective: Objective, kind: SegmentKind) -> float:
    """Return the most load one segment may be given at any demand, req/s."""
    rho = objective.max_utilisation
    limit = min(rho, NEARLY_FULL) if keeps_percentile(objective) else rho
    return limit * kind.throughput_rps


def admissible_rps(objective: Objective, model: Model, kind: SegmentKind) -> float:
    """Return the most load one segment may be given among enough peers, req/s.

    At most `most_rps`; less if the whole demand would need more segments of this kind to keep its
    percentile.

    Args:
        objective: Its `latency_rule` says whether only a batch's time counts.
        model: Its demand and latency objective.
        kind: Kind of the segment; it keeps `catalog.in_time`.
    """
    usable_rps = most_rps(objective, kind)
    if keeps_percentile(objective) and kind.token_times and model.demand_rps > 0:
        bursts = model.dispersion
        load = text_rule.Load(model.demand_rps, bursts.at_1s, bursts.at_10s)
        segments = text_rule.least_segments(
            kind, load, model.slo_first_token_s, model.slo_percentile
        )
        usable_rps = min(usable_rps, model.demand_rps / segments)
    if not keeps_percentile(objective):
        return usable_rps
    stage = kind.stage
    time_s = model.slo_latency_s * stage.budget - stage.transfer_s
    if usable_rps <= 0 or model.demand_rps <= 0:
        return 0.0
    demand_rps = on_grid(model.demand_rps)
    own_rps = _share_rps(
        kind, usable_rps, demand_rps, time_s, model.slo_percentile, model.dispersion
    )
    return min(usable_rps, own_rps)


@lru_cache(maxsize=65536)
def _share_rps(  # noqa: PLR0913, PLR0917  # the key of a cache
    kind: SegmentKind,
    usable_rps: float,
    demand_rps: float,
    time_s: float,
    percentile: float,
    dispersion: Dispersion,
) -> float:
    """Return the demand per segment of the fewest that keep its percentile, req/s; 0: none do."""
    allowed = 1.0 - percentile / 100.0

    def keep(segments: int) -> bool:
        station = Station(kind, segments, demand_rps)
        surely = late_share_bound(station, time_s, dispersion) <= allowed
        return surely or late_share([station], time_s, dispersion) <= allowed

    low = max(1, math.ceil(demand_rps / usable_rps - 1e-9))
    if keep(low):
        return usable_rps
    high, most = low + 1, MAX_TIMES * low + MAX_TIMES
    while not keep(high):
        low, high = high, 2 * high
        if high > most:
            return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keep(middle) else (middle, high)
    return demand_rps / high

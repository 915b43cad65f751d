"""How long a request will take, before anything runs.

The router binds late: a request waits in the model's queue until some process is free, and a free
process takes a batch. That is a queue M/D/c with batch service: Poisson arrivals, c processes,
service times that a profile gives and that hardly vary.

    P(wait > t) = P(wait) * exp(-t * 2 c (1 - u) / S)

with u the utilisation and S the mean batch time. P(wait) = u ^ (sqrt(2 (c + 1)) - 1) is
Sakasegawa's approximation; the exponent's factor 2 comes from (1 + cv^2) / 2, Allen and Cunneen's
correction of the mean wait, with cv = 0. A request's own batch is taken to be full, so that the
prediction errs on the long side at low load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Station:
    """Equal processes that draw from the queue.

    Attributes:
        processes: How many.
        capacity_rps: All of them with full batches, req/s.
        batch_s: Time of a full batch, s.
        load_rps: Load sent there, req/s.
    """

    processes: int
    capacity_rps: float
    batch_s: float
    load_rps: float


def latency_s(stations: Sequence[Station], percentile: float) -> float:
    """Return the latency that `percentile` of the requests stay within, s.

    Args:
        stations: All that serve one model.
        percentile: 0 < percentile < 100.

    Returns:
        Infinity where nothing serves, or load reaches capacity.
    """
    capacity_rps = sum(station.capacity_rps for station in stations)
    load_rps = sum(station.load_rps for station in stations)
    if capacity_rps <= 0 or load_rps >= capacity_rps:
        return math.inf
    if load_rps <= 0:
        return max(station.batch_s for station in stations)
    late = 1.0 - percentile / 100.0
    wait = _Wait.of(stations, load_rps / capacity_rps)

    def later_than(time_s: float) -> float:
        """Return the share of requests that take longer than `time_s`."""
        return sum(
            station.load_rps / load_rps * wait.longer_than(time_s - station.batch_s)
            for station in stations
        )

    low_s = 0.0
    high_s = max(station.batch_s for station in stations) + wait.quantile_s(late)
    for _ in range(BISECTIONS):
        middle_s = (low_s + high_s) / 2
        if later_than(middle_s) > late:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


@dataclass(frozen=True, slots=True)
class _Wait:
    """The wait's distribution: an atom at zero, then exponential. Attributes: mass, rate (1/s)."""

    probability: float
    rate_per_s: float

    @classmethod
    def of(cls, stations: Sequence[Station], utilisation: float) -> _Wait:
        processes = sum(station.processes for station in stations)
        capacity_rps = sum(station.capacity_rps for station in stations)
        batch_s = sum(s.batch_s * s.capacity_rps for s in stations) / capacity_rps
        return cls(
            probability=math.pow(utilisation, math.sqrt(2 * (processes + 1)) - 1),
            rate_per_s=2 * processes * (1 - utilisation) / batch_s,
        )

    def longer_than(self, time_s: float) -> float:
        """Return the probability of waiting longer than `time_s`."""
        if time_s < 0:
            return 1.0
        return self.probability * math.exp(-self.rate_per_s * time_s)

    def quantile_s(self, late: float) -> float:
        """Return the time that a share `late` of requests wait longer than, s."""
        return max(0.0, math.log(self.probability / late) / self.rate_per_s)

"""How long a request will take, before anything runs.

The router binds late: a request waits in the model's queue until a process is free, and a free
process takes what waits, up to a batch. Batch times hardly vary, so this is a queue M/D/c with
service in batches. The wait is longer than t with the larger of two probabilities:

- no process is free, and none ends a batch before t:  P(busy) * (1 - t / S) ^ sqrt(c). Ends of c
  batches would be spread evenly with exponent c; they bunch, because batches start together.
- more waits than the next batches take:  P(full) * z ^ (-capacity * t), where z > 1 solves
  ln z = u (z - 1): the decay of a queue with Poisson arrivals and deterministic service.

u is the utilisation, S the mean batch time, and P(...) = r ^ (sqrt(2 (k + 1)) - 1), Sakasegawa's
approximation: for P(busy) with k = c processes that start on whatever waits, r = min(1, load * S /
c); for P(full) with k = c * batch size places and r = u. A request's own batch is taken to be full,
which errs on the long side at low load. `tests/unit/planner/problem/test_queueing.py` compares with
a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BISECTIONS = 30
NEWTON_STEPS = 50
IDLE = 1e-6
"""Utilisation below which the decay does not matter any more, and floating point ends."""


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
    """The wait's distribution, as the module's docstring has it."""

    busy: float
    full: float
    bunches: float
    batch_s: float
    decay_per_s: float

    @classmethod
    def of(cls, stations: Sequence[Station], utilisation: float) -> _Wait:
        """Take the stations for one, with the mean batch time."""
        processes = sum(station.processes for station in stations)
        capacity_rps = sum(station.capacity_rps for station in stations)
        batch_s = sum(s.batch_s * s.capacity_rps for s in stations) / capacity_rps
        places = capacity_rps * batch_s
        started = min(1.0, utilisation * places / processes)
        return cls(
            busy=_sakasegawa(started, processes),
            full=_sakasegawa(utilisation, places),
            bunches=math.sqrt(processes),
            batch_s=batch_s,
            decay_per_s=capacity_rps * _decay(utilisation),
        )

    def longer_than(self, time_s: float) -> float:
        """Return the probability of waiting longer than `time_s`."""
        if time_s < 0:
            return 1.0
        no_end = math.pow(max(0.0, 1.0 - time_s / self.batch_s), self.bunches)
        return max(self.busy * no_end, self.full * math.exp(-self.decay_per_s * time_s))

    def quantile_s(self, late: float) -> float:
        """Return a time that at most a share `late` of requests wait longer than, s."""
        return max(self.batch_s, math.log(max(1.0, self.full / late)) / self.decay_per_s)


def _sakasegawa(utilisation: float, servers: float) -> float:
    return math.pow(utilisation, math.sqrt(2 * (servers + 1)) - 1)


def _decay(utilisation: float) -> float:
    """Return ln z where ln z = u (z - 1), z > 1; 0 < u < 1.

    Newton's method from above: ln z - u (z - 1) is concave, so that it falls to the root.
    """
    utilisation = max(utilisation, IDLE)
    z = 1.0 + 2.0 / utilisation * (1.0 / utilisation - 1.0) + 1e-9
    for _ in range(NEWTON_STEPS):
        z -= (math.log(z) - utilisation * (z - 1.0)) / (1.0 / z - utilisation)
    return math.log(z)

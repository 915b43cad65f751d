"""Predicted latency of requests, from queueing theory.

The router keeps one queue per model. Segments that run requests one by one bind late: a request
waits until a process is free. Those that batch hold the running batch and, once no other has a
credit left, the next one: requests are assigned in turn, wait in the worker and run with those that
have arrived meanwhile.

- One by one: a birth-death process of the busy processes, in which a batch's time depends on how
  many of its segment are busy; requests that find all busy wait in the queue M/D/c, whose wait is
  exact (Franx, "A simple solution for the M/D/c waiting time distribution", Operations Research
  Letters 29, 2001).
- Batches: the Markov chain of the requests waiting in a worker at the end of each batch, by the
  general bulk service rule (Neuts, Annals of Mathematical Statistics 38, 1967), with times that
  grow with the batch, as on GPUs (Inoue, "Queueing analysis of GPU-based inference servers with
  dynamic batching", Performance Evaluation 147, 2021). Assigned in turn to c processes, a Poisson
  stream gives each of them every c-th request.

Bursts, as the index of dispersion for counts has them (1 in a Poisson process):

- What grows from windows of one second to ten is a rate that switches slowly: requests find the
  queue of one of two rates, the mean's plus or minus the rate's deviation.
- The rest comes together: requests arrive in groups of geometric size, so that counts in any time
  are negative binomial instead of Poisson, in both chains above.

Nothing here is fitted. `python -m benchmarks.latency_model` compares with the router's own code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cinquefoil.planner.v1.records import Dispersion
from services.planner.core.model import POISSON
from services.planner.core.problem.bulk_service import Scaled, batches
from services.planner.core.problem.one_by_one import OneByOne, one_by_one
from services.planner.core.problem.stations import Station, on_grid, rounded_up

BISECTIONS = 16

TURNS = 8
"""Above this many processes, treat round-robin arrivals as Poisson."""


SLOW_GROWTH = 5.0
"""Growth of the dispersion from windows of 1 s to 10 s, over its excess at 1 s, where the rate
switches every five seconds or more slowly."""

LEAST_SLOW = 0.25
"""Share of the excess from which growth is a switching rate, and not an error of the estimate."""

MOST_SWING = 0.9


def latency_s(
    stations: Sequence[Station], percentile: float, dispersion: Dispersion = POISSON
) -> float:
    """Return the latency that `percentile` of the requests stay within, s.

    Args:
        stations: All stations of one queue.
        percentile: 0 < percentile < 100.
        dispersion: Burstiness of the load.

    Returns:
        Infinity where nothing serves, or load reaches capacity.
    """
    if not stations:
        return math.inf
    pool = _Pool.of(stations, dispersion)
    late = 1.0 - percentile / 100.0
    if pool is None or pool.overloaded > late:
        return math.inf
    if len(pool.parts) == 1 and not pool.overloaded and isinstance(pool.parts[0][1], Scaled):
        return pool.parts[0][1].time_s(late)
    high_s = max(station.kind.latency_s for station in stations)
    low_s = 0.0
    while pool.later_than(high_s) > late:
        low_s, high_s = high_s, 2 * high_s
    for _ in range(BISECTIONS):
        middle_s = (low_s + high_s) / 2
        if pool.later_than(middle_s) > late:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def late_share(
    stations: Sequence[Station], time_s: float, dispersion: Dispersion = POISSON
) -> float:
    """Return the share of requests that take longer than `time_s`, 0..1."""
    pool = _Pool.of(stations, dispersion) if stations else None
    return 1.0 if pool is None else pool.later_than(time_s)


def late_share_bound(station: Station, time_s: float, dispersion: Dispersion = POISSON) -> float:
    """Return an upper bound of one station's `late_share`, 0..1; few values are computed.

    Times and load are rounded up; 1 where it runs requests one by one, or for bursts.
    """
    kind = station.kind
    if (
        dispersion != POISSON
        or kind.batch_size == 1
        or station.load_rps >= station.segments * kind.throughput_rps
    ):
        return 1.0
    turns, rate_rps = min(station.processes, TURNS), station.load_rps / station.processes
    return batches(kind, turns, rate_rps, roughly=True).later_than(time_s)


@dataclass(frozen=True, slots=True)
class _Bursts:
    """A load's dispersion in parts.

    Attributes:
        groups: Dispersion of requests that come together.
        swing: Deviation of a rate that switches slowly, relative to its mean.
    """

    groups: float
    swing: float

    @classmethod
    def of(cls, dispersion: Dispersion, load_rps: float) -> _Bursts:
        """Divide the dispersion of a load of `load_rps`."""
        if dispersion == POISSON or load_rps <= 0:
            return cls(1.0, 0.0)
        excess = max(dispersion.at_1s - 1.0, 0.0)
        slow = min(max(dispersion.at_10s - dispersion.at_1s, 0.0) / SLOW_GROWTH, excess)
        if slow < LEAST_SLOW * excess:
            slow = 0.0
        return cls(rounded_up(1.0 + excess - slow), min(math.sqrt(slow / load_rps), MOST_SWING))

    def part(self, share: float) -> float:
        """Return the dispersion of a share of the requests, taken in turn."""
        return rounded_up(1.0 + (self.groups - 1.0) * share)


@dataclass(frozen=True)
class _Pool:
    """The parts of one queue, each with its share of the requests.

    Attributes:
        overloaded: Share of the requests that come at a rate that cannot be served.
    """

    parts: Sequence[tuple[float, OneByOne | Scaled]]
    overloaded: float = 0.0

    @classmethod
    def of(cls, stations: Sequence[Station], dispersion: Dispersion = POISSON) -> _Pool | None:
        """Combine the stations of one queue; None: they cannot take their load."""
        bursts = _Bursts.of(dispersion, sum(each.load_rps for each in stations))
        if not bursts.swing:
            return cls._steady(stations, bursts)
        if any(map(_is_full, _groups(stations))):
            return None
        parts: list[tuple[float, OneByOne | Scaled]] = []
        overloaded = 0.0
        for factor in (1.0 + bursts.swing, 1.0 - bursts.swing):
            scaled = [replace(each, load_rps=factor * each.load_rps) for each in stations]
            pool = cls._steady(scaled, bursts)
            if pool is None:
                overloaded += factor / 2
            else:
                parts += [(factor / 2 * share, part) for share, part in pool.parts]
        return cls(parts, overloaded)

    @classmethod
    def _steady(cls, stations: Sequence[Station], bursts: _Bursts) -> _Pool | None:
        """Combine the stations at one rate."""
        if any(map(_is_full, _groups(stations))):
            return None
        parts: list[tuple[float, OneByOne | Scaled]] = []
        total_rps = sum(each.load_rps for each in stations)
        for group in _groups(stations):
            load_rps = sum(each.load_rps for each in group)
            if load_rps > 0 or total_rps <= 0:
                share = load_rps / total_rps if total_rps > 0 else 1.0
                if group[0].kind.batch_size == 1:
                    rounded = (_rounded(each) for each in group)
                    parts.append((share, one_by_one(bursts.part(share), *rounded)))
                else:
                    processes = group[0].processes
                    turns = min(processes, TURNS)
                    groups = bursts.part(share * turns / processes)
                    rate = group[0].load_rps / processes
                    parts.append((share, batches(group[0].kind, turns, rate, groups)))
        return cls(parts)

    def later_than(self, time_s: float) -> float:
        """Return the share of requests that take longer than `time_s`."""
        return self.overloaded + sum(share * part.later_than(time_s) for share, part in self.parts)


def _groups(stations: Sequence[Station]) -> Iterator[Sequence[Station]]:
    """Yield the stations that take single requests together, and each of the others alone."""
    if singles := [each for each in stations if each.kind.batch_size == 1]:
        yield singles
    yield from ([each] for each in stations if each.kind.batch_size > 1)


def _is_full(group: Sequence[Station]) -> bool:
    """Return whether the load of stations reaches what they sustain."""
    load_rps = sum(each.load_rps for each in group)
    return load_rps >= sum(each.segments * each.kind.throughput_rps for each in group)


def _rounded(station: Station) -> Station:
    return replace(station, load_rps=on_grid(station.load_rps))

"""Segments that run requests one by one: birth and death, and the queue M/D/c beyond."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from services.planner.core.problem.distributions import Values, counts, stationary
from services.planner.core.problem.stations import NEARLY_FULL, NOTHING, Station, rounded_up

MANY = 96
"""Processes above which a queue is modelled with this many: waits are far shorter by then."""

MOST_WAITING = 400
"""Most requests that wait in the chain; the longest waits are far too late anyway."""


class OneByOne:
    """Processes that run single requests: birth and death, and M/D/c beyond.

    Args:
        stations: Stations whose batches have one item.
        groups: Dispersion of requests that come together.
    """

    def __init__(self, stations: Sequence[Station], groups: float = 1.0) -> None:
        processes = sum(each.processes for each in stations)
        load_rps = sum(each.load_rps for each in stations)
        weights = [
            each.load_rps / load_rps if load_rps > 0 else each.processes / processes
            for each in stations
        ]
        scale = max(1.0, processes / MANY)
        count, load_rps = round(processes / scale), load_rps / scale
        shares = [_others_busy(count, min(each.kind.processes, count)) for each in stations]
        times = [np.array(each.kind.single_times_s) for each in stations]
        busy_s = sum(
            weight * others @ time_s[: others.shape[1]]
            for weight, others, time_s in zip(weights, shares, times, strict=True)
        )
        # While all are busy, whichever ends first takes the next: as its rate, not its weight.
        rates_rps = [e.processes / float(t[-1]) for e, t in zip(stations, times, strict=True)]
        self._full_s = processes / sum(rates_rps)
        self._rates = [rate / sum(rates_rps) for rate in rates_rps]
        utilisation = min(load_rps * self._full_s / count, NEARLY_FULL)
        steps = np.log(np.maximum(load_rps * busy_s / np.arange(1, count + 1), 1e-300))
        states = np.concatenate([[0.0], np.cumsum(steps)])
        found = np.exp(states - states.max())
        waiting = found[-1] / (1.0 - utilisation)
        total = found[:-1].sum() + waiting
        self._longer = _md_c(count, utilisation, rounded_up(1.0 + (groups - 1.0) / scale))
        self._waits = float(waiting / total)
        if groups > 1.0:
            self._waits = max(self._waits, self._longer.waits)
        at_once = found[:-1] / total
        self._branches = [
            (w, waiting, at_once @ others, t[: others.shape[1]], float(t[-1]))
            for w, waiting, others, t in zip(weights, self._rates, shares, times, strict=True)
        ]

    def later_than(self, time_s: float) -> float:
        """Return the share of requests that take longer than `time_s`."""
        late = 0.0
        for weight, waiting, others, times_s, full_s in self._branches:
            at_once = float(others[times_s > time_s * (1 + NOTHING)].sum())
            left_s = time_s * (1 + NOTHING) - full_s
            waits = self._longer.than(left_s / self._full_s) if left_s >= 0 else 1.0
            late += weight * at_once + waiting * self._waits * waits
        return late


@lru_cache(maxsize=8192)
def one_by_one(groups: float, *stations: Station) -> OneByOne:
    """Return the processes of some stations; equal ones share one computation."""
    return OneByOne(stations, groups)


class _Wait:
    """The wait in M/D/c, in service times.

    Args:
        servers: c.
        utilisation: 0 <= utilisation < 1.
        groups: Dispersion of requests that come together.

    Attributes:
        waits: Share of requests that wait.
    """

    def __init__(self, servers: int, utilisation: float, groups: float = 1.0) -> None:
        load = servers * utilisation
        longest = groups * math.ceil(7 / (1.0 - utilisation))
        size = servers + 24 + min(math.ceil(longest), MOST_WAITING)
        self._groups = groups
        arrivals = counts(np.array([load]), size, groups)[0]
        moves = np.zeros((size, size))
        for present in range(size):
            left = max(present - servers, 0)
            moves[present, left:] = arrivals[: size - left]
        self._servers, self._load = servers, load
        self._queue = np.cumsum(stationary(moves))[servers:]  # by length: P(length <= it)
        self.waits = max(self._not_within(0.0), 1e-300)

    def than(self, time: float) -> float:
        """Return P(wait > time), given that there is one."""
        return min(1.0, self._not_within(time) / self.waits)

    def _not_within(self, time: float) -> float:
        ends = math.floor(time) + 1
        size = ends * self._servers
        groups = self._groups
        came_at_most = self._load + 12 * math.sqrt(self._load * groups) + 40 * groups
        if size > len(self._queue) + came_at_most:
            return 0.0  # beyond the longest queue; what is neglected is below 1e-15
        came = counts(np.array([self._load * (ends - time)]), size, self._groups)[0]
        if self._groups > 1.0:  # of its own group, some come before it: a geometric number
            more = (self._groups - 1.0) / (self._groups + 1.0)
            came = np.convolve(came, (1.0 - more) * more ** np.arange(size))[:size]
        queued = np.minimum(ends * self._servers - 1 - np.arange(len(came)), len(self._queue) - 1)
        return max(0.0, 1.0 - float(came @ self._queue[queued]))


@lru_cache(maxsize=4096)
def _md_c(servers: int, utilisation: float, groups: float) -> _Wait:
    return _Wait(servers, min(utilisation, NEARLY_FULL), groups)


@lru_cache(maxsize=512)
def _others_busy(processes: int, of_segment: int) -> Values:
    """Return P(number of busy others in a segment | number of busy others in all).

    Shape (others of all, 0..processes - 1; others of the segment, 0..of_segment - 1).
    """
    found = np.zeros((processes, of_segment))
    for busy in range(processes):
        for here in range(of_segment):
            if here <= busy and busy - here <= processes - of_segment:
                ways = math.comb(of_segment - 1, here) * math.comb(
                    processes - of_segment, busy - here
                )
                found[busy, here] = ways / math.comb(processes - 1, busy)
    return found

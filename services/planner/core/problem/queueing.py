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
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from cinquefoil.planner.v1.records import Dispersion
from services.planner.core.model import POISSON, SegmentKind

Values = NDArray[np.float64]

BISECTIONS = 16
TURNS = 8
"""Above this many processes, treat round-robin arrivals as Poisson."""

FINE = 64
"""Resolution of latencies, steps per full batch's time."""

LONGEST = 16
"""Latency above which no difference is made, in full batches' times."""

MOMENTS = 16
"""Arrival times considered within a batch's time."""

RATIOS = 40
"""Resolution of a small batch's time, steps per full batch's time; it is rounded up."""

ROUGH_RATIOS, ROUGH_GRID = 4, 1.5
"""`RATIOS` and `GRID` for a bound, which suffices for most segments."""

RARE = 1e-6
"""Share of all requests that is too small to change a percentile."""

MANY = 96
"""Processes above which a queue is modelled with this many: waits are far shorter by then."""

NEARLY_FULL = 0.95
"""Utilisation above which no percentile is kept, and no latency is computed."""

GRID = 1.02
"""Ratio of neighbouring loads for which latencies are computed."""

MOST_ITERATIONS = 1000

ITERATIONS = 6
"""Iterations in which the share of busy processes and the batches' times converge."""

NOTHING = 1e-9

SLOW_GROWTH = 5.0
"""Growth of the dispersion from windows of 1 s to 10 s, over its excess at 1 s, where the rate
switches every five seconds or more slowly."""

LEAST_SLOW = 0.25
"""Share of the excess from which growth is a switching rate, and not an error of the estimate."""

MOST_SWING = 0.9
GROUP_GRID = 1.25
"""Ratio of neighbouring dispersions for which latencies are computed."""

MOST_GROUPED, MOST_WAITING = 120, 400
"""Limits of the requests that chains count, for groups; the longest are far too late anyway."""


@dataclass(frozen=True, slots=True)
class Station:
    """Equal segments that draw from the queue.

    Attributes:
        kind: Segment kind.
        segments: Number of segments.
        load_rps: Load of all of them, req/s.
    """

    kind: SegmentKind
    segments: int
    load_rps: float

    @property
    def processes(self) -> int:
        """Number of processes of all segments."""
        return self.segments * self.kind.processes


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
    if len(pool.parts) == 1 and not pool.overloaded and isinstance(pool.parts[0][1], _Scaled):
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
    return _batches(kind, turns, rate_rps, roughly=True).later_than(time_s)


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
        return cls(_rounded_up(1.0 + excess - slow), min(math.sqrt(slow / load_rps), MOST_SWING))

    def part(self, share: float) -> float:
        """Return the dispersion of a share of the requests, taken in turn."""
        return _rounded_up(1.0 + (self.groups - 1.0) * share)


def _rounded_up(dispersion: float) -> float:
    """Round up, so that neighbouring values share one computation."""
    return GROUP_GRID ** math.ceil(math.log(dispersion, GROUP_GRID) - NOTHING)


@dataclass(frozen=True)
class _Pool:
    """The parts of one queue, each with its share of the requests.

    Attributes:
        overloaded: Share of the requests that come at a rate that cannot be served.
    """

    parts: Sequence[tuple[float, _OneByOne | _Scaled]]
    overloaded: float = 0.0

    @classmethod
    def of(cls, stations: Sequence[Station], dispersion: Dispersion = POISSON) -> _Pool | None:
        """Combine the stations of one queue; None: they cannot take their load."""
        bursts = _Bursts.of(dispersion, sum(each.load_rps for each in stations))
        if not bursts.swing:
            return cls._steady(stations, bursts)
        if any(map(_is_full, _groups(stations))):
            return None
        parts: list[tuple[float, _OneByOne | _Scaled]] = []
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
        parts: list[tuple[float, _OneByOne | _Scaled]] = []
        total_rps = sum(each.load_rps for each in stations)
        for group in _groups(stations):
            load_rps = sum(each.load_rps for each in group)
            if load_rps > 0 or total_rps <= 0:
                share = load_rps / total_rps if total_rps > 0 else 1.0
                if group[0].kind.batch_size == 1:
                    rounded = (_rounded(each) for each in group)
                    parts.append((share, _one_by_one(bursts.part(share), *rounded)))
                else:
                    processes = group[0].processes
                    turns = min(processes, TURNS)
                    groups = bursts.part(share * turns / processes)
                    rate = group[0].load_rps / processes
                    parts.append((share, _batches(group[0].kind, turns, rate, groups)))
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


class _OneByOne:
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
        self._longer = _md_c(count, utilisation, _rounded_up(1.0 + (groups - 1.0) / scale))
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


class _Batches:
    """Processes that run all that waits, up to a batch: bulk service. Times are in full batches.

    Args:
        times: Time of a batch of one item, of half a batch and of a full one, while 1, 2, ..
            processes of the segment run; the last is 1.
        most: Items of a full batch, above 1.
        turns: Processes to which requests are assigned in turn.
        rate: Load of one process, requests per full batch's time.
        groups: Dispersion of requests that come together, of all `turns` processes.
    """

    def __init__(
        self,
        times: tuple[tuple[float, ...], ...],
        most: int,
        turns: int,
        rate: float,
        groups: float = 1.0,
    ) -> None:
        self._rate, self._most, self._turns = max(rate, 1e-12), most, turns
        self._groups = groups
        longest_group = 4 * (groups - 1.0)
        self._size = 3 * most + 9 + min(math.ceil(longest_group / turns), MOST_GROUPED)
        self._times = _by_items(np.array(times), most)
        waiting = np.arange(self._size)
        self._items = np.clip(waiting, 1, most)
        self._left = np.maximum(waiting - self._items, 0)
        # By items and busy processes: arrivals while a batch runs; and those where it began with a
        # request that found the worker idle, hence just after its turn.
        came = self._came(self._times)
        self._first = _in_turn(
            self._rate * self._times[0], turns, self._size, drawn=False, groups=groups
        )
        trials, busy = self._times.shape[1] - 1, 0.5
        self._ends = np.full(self._size, 1.0 / self._size)
        for _ in range(ITERATIONS if trials else 1):
            self._others = _binomial(trials, busy)
            self._ends = self._stationary(self._others @ self._first, self._others @ came)
            mean = float(self._ends @ (self._times @ self._others)[self._items - 1])
            busy = min(1.0, self._rate * mean / float(self._ends @ self._items))

    def _came(self, times: Values) -> Values:
        """Return the distributions of arrivals within times: shape of `times`, then requests."""
        means = self._rate * times
        found = _in_turn(means.ravel(), self._turns, self._size, drawn=True, groups=self._groups)
        return found.reshape(*means.shape, self._size)

    def _stationary(self, first: Values, came: Values) -> Values:
        """Return the distribution of the requests waiting in a worker at the end of a batch."""
        moves = np.empty((self._size, self._size))
        moves[0], moves[1 : self._most + 1] = first, came
        later = np.zeros(2 * self._size)  # after a full batch: those left, and arrivals
        later[self._size :] = came[-1]
        shifted = np.lib.stride_tricks.sliding_window_view(later, self._size)
        more = self._size - self._most - 1
        moves[self._most + 1 :] = shifted[self._size - 1 : self._size - 1 - more : -1]
        return _steady(moves, self._ends)

    @cached_property
    def _late(self) -> Values:
        """Shares of requests that take longer than 0, 1, .. `1 / FINE` of a full batch's time.

        A request that arrives while a batch runs is equally likely to arrive at any time, with
        arrivals before it in proportion. One that finds the worker idle runs at once, alone.
        """
        most, found = self._most, np.zeros(FINE * LONGEST + 2)
        likely = self._ends[:, None] * self._others  # waiting, busy others
        _add(found, self._times[0], likely[0])
        for busy_others in np.flatnonzero(likely[0] > RARE).tolist():
            self._add_after_idle(found, busy_others, float(likely[0, busy_others]))
        after = (np.arange(MOMENTS) + 0.5) / MOMENTS
        waiting, busy = np.nonzero(likely[1:] > RARE)
        waiting += 1
        which = self._items[waiting] - 1
        begun = self._times[which, busy]
        came = self._came(begun) * np.arange(self._size)
        weights = _likely(likely[waiting, busy][:, None] * came)
        state, number = np.nonzero(weights > RARE)
        weight = weights[state, number]
        left = self._left[waiting][state]
        ahead = left + np.floor(after[:, None] * number).astype(np.int64)
        batches = ahead // most
        own = np.where(batches > 0, most, np.minimum(left + number, most))
        full = self._times[most - 1, busy[state]]
        rest = batches * full + self._times[own - 1, busy[state]]
        times = (1 - after)[:, None] * begun[state] + rest
        _add(found, times.ravel(), np.broadcast_to(weight / MOMENTS, times.shape).ravel())
        late: Values = 1.0 - np.cumsum(found) / found.sum()
        return late

    def _add_after_idle(self, found: Values, busy: int, share: float) -> None:
        """Add the requests that arrive while one runs that found the worker idle.

        The worker has just had its turn: its next request is the last of `turns`.
        """
        turns, size, time = self._turns, self._size, float(self._times[0, busy])
        at = (np.arange(MOMENTS) + 0.5) / MOMENTS * time
        groups = self._groups
        before = counts(self._rate * turns * at, size * turns, groups)[:, turns - 1 :: turns]
        later = _in_turn(self._rate * (time - at), turns, size, drawn=False, groups=groups)
        before *= share * self._rate * turns * time / MOMENTS
        before, later = _likely(before), _likely(later, float(before.max(initial=0.0)))
        weight = before[:, :, None] * later[:, None, :]
        moment, ahead, behind = np.nonzero(weight > RARE)
        batches = ahead // self._most
        own = np.where(batches > 0, self._most, np.minimum(ahead + 1 + behind, self._most))
        rest = batches * self._times[-1, busy] + self._times[own - 1, busy]
        _add(found, time - at[moment] + rest, weight[moment, ahead, behind])

    def time(self, late: float) -> float:
        """Return the time within which all but a share of the requests stay, full batches."""
        return int(np.argmax(self._late <= late)) / FINE

    def later_than(self, time: float) -> float:
        """Return the share of requests that take longer than `time`, full batches."""
        at = time * FINE
        if at >= len(self._late) - 1:
            return 0.0
        return float(self._late[math.floor(at + NOTHING)])


def _batches(
    kind: SegmentKind, turns: int, rate_rps: float, groups: float = 1.0, *, roughly: bool = False
) -> _Scaled:
    """Return the batches of a kind; kinds with equal ratios of times share one computation."""
    full_s, parts = kind.full_times_s[-1], ROUGH_RATIOS if roughly else RATIOS
    ends = (kind.single_times_s, kind.half_times_s, kind.full_times_s)
    ratios = tuple(tuple(math.ceil(parts * t / full_s - NOTHING) / parts for t in e) for e in ends)
    utilisation = min(rate_rps * full_s / kind.batch_size, NEARLY_FULL)
    if roughly and utilisation > 0:
        below = math.floor(math.log(NEARLY_FULL / utilisation, ROUGH_GRID) + NOTHING)
        utilisation = NEARLY_FULL / ROUGH_GRID**below
    known = _known_batches(ratios, kind.batch_size, turns, on_grid(utilisation), groups)
    return _Scaled(known, full_s)


@lru_cache(maxsize=16384)
def _known_batches(
    ratios: tuple[tuple[float, ...], ...],
    most: int,
    turns: int,
    utilisation: float,
    groups: float,
) -> _Batches:
    return _Batches(ratios, most, turns, utilisation * most, groups)


@dataclass(frozen=True)
class _Scaled:
    """Batches scaled by the time of a full one, s."""

    of: _Batches
    full_s: float

    def later_than(self, time_s: float) -> float:
        """Return the share of requests that take longer than `time_s`."""
        return self.of.later_than(time_s / self.full_s)

    def time_s(self, late: float) -> float:
        """Return the time within which all but a share of the requests stay, s."""
        return self.full_s * self.of.time(late)


@lru_cache(maxsize=8192)
def _one_by_one(groups: float, *stations: Station) -> _OneByOne:
    return _OneByOne(stations, groups)


def _rounded(station: Station) -> Station:
    return replace(station, load_rps=on_grid(station.load_rps))


def on_grid(load_rps: float) -> float:
    """Round a load up, by at most 2 %, so that neighbouring loads share one computation."""
    return GRID ** math.ceil(math.log(load_rps, GRID) - NOTHING) if load_rps > 0 else 0.0


def _by_items(ends: Values, most: int) -> Values:
    """Return the times of batches, shape (items 1..most, busy processes 1..).

    From half a batch on they grow linearly. Below, they fall at the same slope, down to one item's
    time, where launching takes longer than computing.
    """
    single, middle, full = ends
    half = (most + 1) // 2
    items = np.arange(1, most + 1)[:, None]
    slope = np.maximum(full - middle, 0.0) / max(most - half, 1)
    found: Values = np.clip(middle + slope * (items - half), single, np.maximum(full, single))
    found[0] = single
    return np.maximum.accumulate(found)


def _add(found: Values, times: Values, weights: Values) -> None:
    """Add weights at the step nearest to the end of their times."""
    at = np.minimum(np.rint(times * FINE).astype(np.int64), len(found) - 1)
    found += np.bincount(at, weights, len(found))


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
        self._queue = np.cumsum(_steady(moves))[servers:]  # by length: P(length <= it)
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


def _in_turn(means: Values, turns: int, size: int, *, drawn: bool, groups: float) -> Values:
    """Return distributions of the requests assigned to one of `turns` processes.

    Args:
        means: Mean number of requests to all, for each distribution.
        turns: Processes to which requests are assigned in turn.
        size: Length of each distribution.
        drawn: Whether the first turn is random; else this process has just had its turn.
        groups: Dispersion of requests that come together.

    Returns:
        Shape (means, size).
    """
    total = counts(means * turns, size * turns, groups).reshape(len(means), size, turns)
    if not drawn:
        just: Values = total.sum(axis=2)
        return just
    later = np.arange(turns) / turns
    found: Values = total @ (1 - later)
    found[:, 1:] += (total @ later)[:, :-1]
    return found


def counts(means: Values, size: int, groups: float) -> Values:
    """Return distributions of counts, shape (means, size): Poisson, or of groups.

    Groups of geometric size that come in a Poisson process have negative binomial counts.
    """
    if groups <= 1.0:
        return _poissons(means, size)
    number = np.maximum(means, 1e-300)[:, None] / (groups - 1.0)
    at = np.arange(size - 1)
    steps = np.log((at + number) / (at + 1) * (1.0 - 1.0 / groups))
    logs = np.concatenate([np.zeros((len(means), 1)), np.cumsum(steps, axis=1)], axis=1)
    found: Values = np.exp(logs - number * math.log(groups))
    return found


def _poissons(means: Values, size: int) -> Values:
    """Return Poisson distributions, shape (means, size)."""
    most = float(means.max(initial=0.0))
    likely = min(size, math.ceil(most + 12 * math.sqrt(most) + 30))  # the rest is below 1e-16
    found = np.zeros((len(means), size))
    logs = np.log(np.maximum(means, 1e-300))[:, None] * np.arange(likely) - _log_factorials(likely)
    np.exp(logs - means[:, None], out=found[:, :likely])
    return found


@lru_cache(maxsize=512)
def _log_factorials(size: int) -> Values:
    """Return the logarithms of 0!, 1!, .."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size)))])


def _likely(shares: Values, most: float = 1.0) -> Values:
    """Return the columns up to the last that makes a difference, times `most`."""
    last = np.flatnonzero(most * shares.max(axis=0, initial=0.0) > RARE)
    return shares[:, : int(last[-1]) + 1 if len(last) else 0]


def _binomial(trials: int, share: float) -> Values:
    return np.array(
        [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    )


def _steady(moves: Values, near: Values | None = None) -> Values:
    """Return the stationary distribution; transitions out of the states stay in the last one.

    Args:
        moves: Transition probabilities, from state by row to state by column.
        near: A distribution to start the iteration from; None: any.
    """
    moves[:, -1] += np.maximum(0.0, 1.0 - moves.sum(axis=1))
    found: Values = np.full(len(moves), 1.0 / len(moves)) if near is None else near
    for _ in range(MOST_ITERATIONS):
        before, found = found, found @ moves
        if np.abs(found - before).sum() < RARE:
            break
    return found / float(found.sum())

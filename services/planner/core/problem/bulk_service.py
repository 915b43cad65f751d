"""Segments that run all that waits, up to a batch: bulk service."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from services.planner.core.model import SegmentKind
from services.planner.core.problem.distributions import (
    RARE,
    Values,
    binomial,
    counts,
    in_turn,
    likely_columns,
    stationary,
)
from services.planner.core.problem.stations import NEARLY_FULL, NOTHING, on_grid

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

ITERATIONS = 6
"""Iterations in which the share of busy processes and the batches' times converge."""

MOST_GROUPED = 120
"""Most further requests that the chain counts, for groups; the longest are far too late anyway."""


class Batches:
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
        self._first = in_turn(
            self._rate * self._times[0], turns, self._size, drawn=False, groups=groups
        )
        trials, busy = self._times.shape[1] - 1, 0.5
        self._ends = np.full(self._size, 1.0 / self._size)
        for _ in range(ITERATIONS if trials else 1):
            self._others = binomial(trials, busy)
            self._ends = self._stationary(self._others @ self._first, self._others @ came)
            mean = float(self._ends @ (self._times @ self._others)[self._items - 1])
            busy = min(1.0, self._rate * mean / float(self._ends @ self._items))

    def _came(self, times: Values) -> Values:
        """Return the distributions of arrivals within times: shape of `times`, then requests."""
        means = self._rate * times
        found = in_turn(means.ravel(), self._turns, self._size, drawn=True, groups=self._groups)
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
        return stationary(moves, self._ends)

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
        weights = likely_columns(likely[waiting, busy][:, None] * came)
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
        later = in_turn(self._rate * (time - at), turns, size, drawn=False, groups=groups)
        before *= share * self._rate * turns * time / MOMENTS
        before, later = (
            likely_columns(before),
            likely_columns(later, float(before.max(initial=0.0))),
        )
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


def batches(
    kind: SegmentKind, turns: int, rate_rps: float, groups: float = 1.0, *, roughly: bool = False
) -> Scaled:
    """Return the batches of a kind; kinds with equal ratios of times share one computation."""
    full_s, parts = kind.full_times_s[-1], ROUGH_RATIOS if roughly else RATIOS
    ends = (kind.single_times_s, kind.half_times_s, kind.full_times_s)
    ratios = tuple(tuple(math.ceil(parts * t / full_s - NOTHING) / parts for t in e) for e in ends)
    utilisation = min(rate_rps * full_s / kind.batch_size, NEARLY_FULL)
    if roughly and utilisation > 0:
        below = math.floor(math.log(NEARLY_FULL / utilisation, ROUGH_GRID) + NOTHING)
        utilisation = NEARLY_FULL / ROUGH_GRID**below
    known = _known(ratios, kind.batch_size, turns, on_grid(utilisation), groups)
    return Scaled(known, full_s)


@lru_cache(maxsize=16384)
def _known(
    ratios: tuple[tuple[float, ...], ...],
    most: int,
    turns: int,
    utilisation: float,
    groups: float,
) -> Batches:
    return Batches(ratios, most, turns, utilisation * most, groups)


@dataclass(frozen=True)
class Scaled:
    """Batches scaled by the time of a full one, s."""

    of: Batches
    full_s: float

    def later_than(self, time_s: float) -> float:
        """Return the share of requests that take longer than `time_s`."""
        return self.of.later_than(time_s / self.full_s)

    def time_s(self, late: float) -> float:
        """Return the time within which all but a share of the requests stay, s."""
        return self.full_s * self.of.time(late)


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

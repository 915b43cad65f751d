"""Burstiness of each model's load, from the requests that routers counted in each second.

The index of dispersion for counts, variance over mean, in windows of one and of ten seconds (Cox
and Lewis, "The Statistical Analysis of Series of Events", 1966). The requests of all routers are
added up by second first: bursts that a load balancer splits are one. Within a block of
`BLOCK_S` the variance is about the block's own mean, so that slower changes, which the forecast of
the load covers, do not count. The first block counts for its part before it is complete, where the
load is burstier than configured: to plan for bursts too late costs requests, too early only energy.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cinquefoil.planner.v1.records import Dispersion

BLOCK_S: Final = 100
"""Length of a block; slower changes are the load forecast's."""

LONG_S: Final = 10
EARLY_S: Final = 3 * LONG_S
"""Part of the first block from which it counts, where it is burstier, s."""

LATE_S: Final = 3
"""Longest that a second waits for the reports of all routers, s."""

PRIOR_BLOCKS: Final = 3.0
"""Weight of the initial dispersion, in blocks."""

DECAY: Final = 0.9
"""Factor of a block's weight with each later one: blocks count for about a quarter of an hour."""

CHANGE: Final = 1.5
"""Factor by which a dispersion must differ from the one in use to replace it."""

MAX_DISPERSION: Final = 1e4


@dataclass(slots=True)
class _Estimate:
    """Running estimate of one model.

    Attributes:
        at_1s, at_10s: Weighted means over the blocks.
        weight: Weight of the blocks so far.
        counts: Requests in each second of the current block.
        blocks: Number of complete blocks.
    """

    at_1s: float
    at_10s: float
    weight: float = PRIOR_BLOCKS
    counts: list[int] = field(default_factory=list)
    blocks: int = 0

    def add(self, count: int) -> bool:
        """Add the next second; return whether there is more to learn."""
        self.counts.append(count)
        if len(self.counts) == BLOCK_S and not any(self.counts):
            self.counts = []
        early = not self.blocks and len(self.counts) % LONG_S == 0 and len(self.counts) >= EARLY_S
        return (early or len(self.counts) == BLOCK_S) and any(self.counts)

    def learn(self) -> Dispersion:
        """Return the dispersion with the current block; a complete one is kept."""
        block = np.array(self.counts, dtype=np.float64)
        part = len(block) / BLOCK_S
        weight = DECAY * self.weight + part
        by_window = block.reshape(-1, LONG_S).sum(axis=1)
        at_1s = self.at_1s + part * (_index(block) - self.at_1s) / weight
        at_10s = self.at_10s + part * (_index(by_window) - self.at_10s) / weight
        if part >= 1:
            self.at_1s, self.at_10s, self.weight = at_1s, at_10s, weight
            self.counts, self.blocks = [], self.blocks + 1
        return Dispersion(max(at_1s, 1.0), max(at_10s, 1.0))


def _index(counts: NDArray[np.float64]) -> float:
    """Return variance over mean; its expectation in a Poisson process is 1, however few come."""
    return min(float(counts.var(ddof=1) / counts.mean()), MAX_DISPERSION)


class Burstiness:
    """Dispersion by model, from the routers' reports.

    Attributes:
        known: Dispersion that plans are made for, by model; it changes only by `CHANGE` or more.
    """

    def __init__(
        self, initial: Mapping[str, Dispersion], now_s: Callable[[], float] = time.time
    ) -> None:
        """Start without history.

        Args:
            initial: Dispersion to begin with, by model; other models are ignored.
            now_s: Returns the Unix time, s.
        """
        self.known: Mapping[str, Dispersion] = {}
        self._now_s = now_s
        self._initial: dict[str, Dispersion] = {}
        self._estimates: dict[str, _Estimate] = {}
        self._reported: dict[str, int] = {}  # by router: the first second not reported
        self._open: dict[int, dict[str, int]] = {}  # seconds that reports may still come for
        self._next = 0  # second after the last closed one
        self.configure(initial)

    def configure(self, initial: Mapping[str, Dispersion]) -> None:
        """Replace the initial values; what was learnt stays, where the initial value does."""
        same = {model for model in initial if self._initial.get(model) == initial[model]}
        self.known = {model: (self.known if model in same else initial)[model] for model in initial}
        self._estimates = {
            model: self._estimates[model] if model in same else _Estimate(new.at_1s, new.at_10s)
            for model, new in initial.items()
        }
        self._initial = dict(initial)

    def observe(
        self, router_id: str, first_second: int, counts: Mapping[str, Sequence[int]]
    ) -> None:
        """Add one router's report.

        Args:
            router_id: Id of the router.
            first_second: Unix second that the first count of each model is for. Seconds that are
                too old, or to come, are ignored.
            counts: Requests that arrived in each second, by model.
        """
        now = math.floor(self._now_s())
        begin = max(self._reported.get(router_id, 0), self._next, now - BLOCK_S)
        end = first_second + max(map(len, counts.values()), default=0)
        if first_second > now or end > now + LATE_S or end < now - BLOCK_S:
            return
        self._reported[router_id] = max(end, self._reported.get(router_id, 0))
        for second in range(max(begin, first_second), end):
            self._open.setdefault(second, {})
        for model in counts.keys() & self.known.keys():
            for second, count in enumerate(counts[model], first_second):
                if second >= begin:
                    at = self._open.setdefault(second, {})
                    at[model] = at.get(model, 0) + count
        self._close(now)

    def forget(self, router_id: str) -> None:
        """Drop a router that has disconnected: no report of it is waited for."""
        self._reported.pop(router_id, None)

    def _close(self, now: int) -> None:
        """Learn from the seconds that every router has reported, or that ended long ago."""
        until = max(min(self._reported.values()), now - LATE_S)
        for second in sorted(each for each in self._open if each < until):
            if second != self._next:
                for estimate in self._estimates.values():  # a gap: a block has none
                    estimate.counts.clear()
            self._next = second + 1
            arrived = self._open.pop(second)
            for model, estimate in self._estimates.items():
                if estimate.add(arrived.get(model, 0)):
                    self._learn(model, estimate)

    def _learn(self, model: str, estimate: _Estimate) -> None:
        old, new = self.known[model], estimate.learn()
        if not estimate.blocks:
            new = Dispersion(max(new.at_1s, old.at_1s), max(new.at_10s, old.at_10s))
        elif estimate.blocks == 1 and not estimate.counts:  # parts of it are replaced
            old = self._initial[model]
            self.known = {**self.known, model: old}
        if _differs(new.at_1s, old.at_1s) or _differs(new.at_10s, old.at_10s):
            self.known = {**self.known, model: new}  # snapshots have the old ones


def _differs(new: float, old: float) -> bool:
    return not 1 / CHANGE < new / old < CHANGE

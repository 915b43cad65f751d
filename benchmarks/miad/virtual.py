"""The segment in virtual time: the worker's batching and costs, the agent's own governor."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.miad.setting import (
    FLOOR,
    PERCENTILE,
    SLO_S,
    TABLE,
    Served,
)
from services.gpuagent.clock_loop.core.decide import RULES, ClockRules, GovernedSegment, Move
from services.gpuagent.clock_loop.core.governor import SAMPLE_S, Governor
from services.gpuagent.shared_memory.latency_counters import SIZES, Counts, size_of

Rate = Callable[[float], float]
"""Requests per second at a time, s."""


@dataclass(slots=True)
class Course:
    """Record of a run.

    Attributes:
        answers: End and latency of each request, s.
        spans: Begin and length of each batch, s, and its energy, J.
        clocks: Time of each change of the clock, s, and its new value, MHz.
        moves: The governor's, by kind.
    """

    answers: list[tuple[float, float]] = field(default_factory=list)
    spans: list[tuple[float, float, float]] = field(default_factory=list)
    clocks: list[tuple[float, int]] = field(default_factory=list)
    moves: dict[str, int] = field(default_factory=dict)

    def latencies_s(self, since_s: float, until_s: float) -> NDArray[np.float64]:
        """Return the latencies of what was answered in a stretch of time, s."""
        return np.array([lat for at, lat in self.answers if since_s <= at < until_s])

    def active_power_w(self, since_s: float, until_s: float) -> float:
        """Return the mean power of what ran in a stretch of time, idle power apart, W."""
        energy_j = sum(
            joules * max(min(at + took, until_s) - max(at, since_s), 0.0) / took
            for at, took, joules in self.spans
        )
        return energy_j / (until_s - since_s)


@dataclass(frozen=True, slots=True)
class Policy:
    """The owner of the clock.

    Attributes:
        rules: The loop's; None: no loop.
        ceiling_mhz: The plan's clock; 0: the highest.
        slo_s: The objective, s.
    """

    rules: ClockRules | None = None
    ceiling_mhz: int = 0
    slo_s: float = SLO_S


DEFAULT = Policy()
MIAD = Policy(RULES)
PRINTED = Policy(replace(RULES, margin=0.0, growth=0.0, forget_s=0.0, energy_floor=False))
"""Without what we added to Alg. 3; with one segment its other faults do not show."""


def run(
    served: Served,
    rate_rps: Rate,
    length_s: float,
    policy: Policy,
    *,
    seed: int = 0,
) -> Course:
    """Serve Poisson arrivals; requests wait in one queue, as before the router's credits.

    Args:
        served: The segment.
        rate_rps: Load.
        length_s: Length of the run, s.
        policy: The owner of the clock.
        seed: Of the arrivals.
    """
    governor = Governor("GPU-1", TABLE.clocks_mhz, FLOOR, policy.rules or RULES)
    segment = GovernedSegment(
        *("s-1", "m", PERCENTILE, policy.slo_s), costs=served.costs, processes=served.processes
    )
    governor.look(0.0, policy.ceiling_mhz, {})
    station = _Station(served, governor, Course(clocks=[(0.0, governor.clock_mhz)]))
    arrivals = _arrivals(rate_rps, length_s, np.random.default_rng(seed))
    next_s, look_s = next(arrivals), SAMPLE_S
    while (now_s := min(next_s, look_s, station.next_end_s)) < length_s:
        if now_s == station.next_end_s:
            station.end()
        elif now_s == next_s:
            station.queue.append(now_s)
            next_s = next(arrivals)
        else:
            look_s += SAMPLE_S
            if policy.rules is not None:
                governor.look(now_s, policy.ceiling_mhz, {segment: station.counts.copy()})
            station.note_clock(now_s)
        station.begin(now_s)
    station.course.moves = {move.value: governor.moves[move] for move in Move}
    return station.course


@dataclass(slots=True)
class _Station:
    """One queue and the segment's processes. Attributes: counts, as a worker keeps them."""

    served: Served
    governor: Governor
    course: Course
    queue: deque[float] = field(default_factory=deque)
    counts: Counts = field(default_factory=lambda: np.zeros(SIZES, np.uint64))
    _running: list[tuple[float, list[float]]] = field(default_factory=list)

    @property
    def next_end_s(self) -> float:
        """When the next batch ends, s."""
        return self._running[0][0] if self._running else math.inf

    def end(self) -> None:
        """Answer the requests of the batch that ends next."""
        now_s, batch = heapq.heappop(self._running)
        for came_s in batch:
            self.counts[size_of(now_s - came_s)] += 1
            self.course.answers.append((now_s, now_s - came_s))

    def begin(self, now_s: float) -> None:
        """Start batches while requests wait and processes are idle; never wait to fill one."""
        while self.queue and len(self._running) < self.served.processes:
            size = min(len(self.queue), self.served.batch_size)
            batch = [self.queue.popleft() for _ in range(size)]
            ratio = self.governor.clock_mhz / TABLE.max_clock_mhz
            cost = self.served.costs.at(len(batch), len(self._running) + 1, ratio)
            self.course.spans.append((now_s, cost.latency_s, cost.energy_j))
            heapq.heappush(self._running, (now_s + cost.latency_s, batch))

    def note_clock(self, now_s: float) -> None:
        """Write the clock down where it changed."""
        if self.governor.clock_mhz != self.course.clocks[-1][1]:
            self.course.clocks.append((now_s, self.governor.clock_mhz))


def _arrivals(rate_rps: Rate, length_s: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield the arrivals of a Poisson process of a varying rate, then one that never comes."""
    at_s = 0.0
    while at_s < length_s:
        at_s += rng.exponential(1.0 / rate_rps(at_s))
        yield at_s
    while True:
        yield float("inf")

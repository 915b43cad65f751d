"""Boosts, and what they do to the tail of the time in the system, for one or several slots. Pure.

A request's rank is its arrival less its class's boost. Waits have an exponential tail,
P(wait > t) ~ A exp(-gamma t), whose rate no order without preemption can improve: only A, by class.
Several slots drain the queue like one that is as many times as fast; but a request keeps its slot
for its whole service, so that long ones, rather than long waits, make the tail of many slots.

Source: Yu, Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", SIGMETRICS 2024;
for partial knowledge Harlev, Yu, Scully, "A Gittins Policy for Optimizing Tail Latency", 2025. Both
are for one slot; for several, their work in the system is taken to wait for all slots together, and
the probability of waiting is Erlang's (formula C, 1917).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, log
from operator import mul

_STEPS = 50
_MAX_EXPONENT = 500.0

Counts = Sequence[float]
"""Requests by the time that they kept the server."""


@dataclass(frozen=True)
class ServiceTimes:
    """Observed requests, by class and by how long they kept their slot; at least one.

    Attributes:
        services_s: Times that requests kept a slot, s, ascending.
        classes: Of each class, the shortest first, how many requests took each of these times.
        slots: Requests that are served at the same time, >= 1.
    """

    services_s: Sequence[float]
    classes: Sequence[Counts]
    slots: int = 1

    @cached_property
    def counts(self) -> Counts:
        """Requests of any class."""
        return [sum(column) for column in zip(*self.classes, strict=True)]

    @cached_property
    def works_s(self) -> Sequence[float]:
        """For how long each time keeps all slots together busy, s."""
        return [service_s / self.slots for service_s in self.services_s]

    @cached_property
    def mean_s(self) -> float:
        """E[S], the work of a request for all slots together, s."""
        return _mean(self.counts, self.works_s)

    @cached_property
    def square_s2(self) -> float:
        """E[S^2] of that work."""
        return _mean(self.counts, [work_s * work_s for work_s in self.works_s])

    def decay_rate(self, rate_rps: float) -> float:
        """Return gamma > 0, 1/s: rate x (E[exp(gamma S)] - 1) = gamma.

        Args:
            rate_rps: Arrivals, below what can be served.
        """

        def excess(gamma: float) -> float:
            return rate_rps * _mean(self.counts, _grown(gamma, self.works_s)) - gamma

        high = 1.0 / self.works_s[-1]
        while excess(high) < 0:
            high *= 2.0
        low = 0.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        return (low + high) / 2

    def boosts_s(self, theta: float) -> list[float]:
        """Return each class's boost over the longest one's, s, >= 0, falling with length.

        b(c) = ln(E[exp(theta T) | c] / (E[exp(theta S) | c] - 1)) / theta, T the time on a slot and
        S = T / slots; a class of which nothing is known is ranked as the next longer one. With one
        slot and theta = gamma the tail is the lightest.
        """
        grown, works = _grown(theta, self.services_s), _grown(theta, self.works_s)
        free = [
            log((sum(counts) + _sum(counts, grown)) / _sum(counts, works)) / theta
            if any(counts)
            else None
            for counts in self.classes
        ]
        below = longest = next(boost for boost in reversed(free) if boost is not None)
        found = []
        for boost in reversed(free):
            below = below if boost is None else max(below, boost)
            found.append(below - longest)
        return found[::-1]


class Tail:
    """The requests that take longer than all but a share of them take in order of arrival.

    P(time > t) = P(T > t) + E[A min(1, exp(behind - gamma (t - T + b))); T <= t]: each goes ahead
    by its own boost b, and behind requests that come within the boosts of others,
    behind = rate E[b (exp(gamma S) - 1)]. The limit of t to infinity with one slot is Yu and
    Scully's constant; many slots are far from that limit.

    Args:
        times: The requests.
        gamma: Decay rate, 1/s.
        rate_rps: Arrivals.
        share: How many of the requests are the slowest, 0..1.

    Attributes:
        limit_s: The time in the system that this share of requests exceed, s.
        share_in_turn: The share, as this formula has it.
    """

    def __init__(self, times: ServiceTimes, gamma: float, rate_rps: float, share: float) -> None:
        self._times, self._gamma = times, gamma
        self._waiting = waiting_share(times.slots, rate_rps * times.mean_s)
        self._total = sum(times.counts)
        works = _grown(gamma, times.works_s)
        self._followers = [rate_rps * _sum(counts, works) / self._total for counts in times.classes]
        low, high = 0.0, times.services_s[-1] - log(share) / gamma
        for _ in range(_STEPS):
            self.limit_s = (low + high) / 2
            above = self._beyond(self._reach(), times.counts) > share * self._total
            low, high = (self.limit_s, high) if above else (low, self.limit_s)
        self.limit_s = high
        self._reached = self._reach()
        self.share_in_turn = self.share_beyond([0.0] * len(times.classes))

    def share_beyond(self, boosts_s: Sequence[float]) -> float:
        """Return the share of requests that take longer than the limit with these boosts, 0..1."""
        behind = sum(b * each for b, each in zip(boosts_s, self._followers, strict=True))
        found = 0.0
        for counts, boost_s in zip(self._times.classes, boosts_s, strict=True):
            exponent = behind - self._gamma * boost_s
            factor = exp(max(min(exponent, _MAX_EXPONENT), -_MAX_EXPONENT))
            found += self._beyond(self._reached, counts, factor)
        return found / self._total

    def _reach(self) -> Sequence[float]:
        """Return exp(-gamma (limit - T)) of the times T below the limit."""
        below = self._times.services_s[: bisect_left(self._times.services_s, self.limit_s)]
        return [exp(-self._gamma * (self.limit_s - service_s)) for service_s in below]

    def _beyond(self, reach: Sequence[float], counts: Counts, factor: float = 1.0) -> float:
        """Return how many requests take longer than the limit, if waits that long are as many."""
        within = bisect_left(reach, 1 / factor)  # beyond it all wait that wait at all
        waiting = factor * _sum(counts[:within], reach[:within]) + sum(counts[within : len(reach)])
        return sum(counts[len(reach) :]) + self._waiting * waiting


def waiting_share(slots: int, load: float) -> float:
    """Return the share of Poisson arrivals that find all slots taken, 0..1.

    Source: Erlang's formula C (1917), by the recurrence of his formula B.

    Args:
        slots: Number of slots, >= 1.
        load: Work that comes in over what can be done, 0..1.
    """
    lost = 1.0
    for busy in range(1, slots + 1):
        lost = slots * load * lost / (busy + slots * load * lost)
    return lost / (1 - load * (1 - lost))


def _grown(theta: float, times_s: Sequence[float]) -> Sequence[float]:
    """Return exp(theta x) - 1 of times x."""
    return [expm1(min(theta * time_s, _MAX_EXPONENT)) for time_s in times_s]


def _mean(counts: Counts, values: Sequence[float]) -> float:
    return _sum(counts, values) / sum(counts)


def _sum(counts: Counts, values: Sequence[float]) -> float:
    return sum(map(mul, counts, values), 0.0)

"""Shorter first without giving anyone up: each length class is ranked as if it had come earlier.

A request's rank is its arrival less the boost of its class. Boosts follow gamma-Boost for labels,

    b(c) = ln(M(c) / (M(c) - 1)) / theta,    M(c) = E[exp(theta S) | class c],

where S is the time a request keeps the service and gamma, the decay rate of the tail of waiting,
solves  lambda (E[exp(gamma S)] - 1) = gamma.  With theta = gamma the tail is the lightest that any
rule gives; a smaller theta trades some of that for a lower mean. `_thrift` says how much: as far as
the 99th percentile stays at or below first come, first served (docs/decisions tells how found).

The guarantee does not rest on any estimate: a boost is never negative and never above a bound B, so
no request is served before one that came more than B earlier. A request without a prediction has no
boost: it is ranked as it came, and so are all while nothing has been learned.

Source: Yu, Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", SIGMETRICS 2024;
for partial knowledge Harlev, Yu, Scully, "A Gittins Policy for Optimizing Tail Latency", 2025. The
aim (speculative shortest job first by predicted classes) is mu-Serve's, ATC 2024, section 3.3.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from math import exp, isfinite, log

CLASSES = 5

_RATIO = 1.1
_SHORTEST_S = 1e-3
_BUCKETS = 160  # up to more than an hour
_MOST_SEEN = 20_000.0
_LEAST_SEEN = 50.0
_MOST_LOAD = 0.97
_MEMORY = 5_000.0  # arrivals that the arrival rate is a mean of
_STEPS = 50

_BOUNDS_S = tuple(_SHORTEST_S * _RATIO**index for index in range(_BUCKETS - 1))
_MIDDLES_S = tuple(_SHORTEST_S * _RATIO ** (index - 0.5) for index in range(_BUCKETS))


class Boosts:
    """The boosts of one model's classes, learned from its own requests.

    Args:
        most_s: B, the bound on every boost, s.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._boosts_s: tuple[float, ...] = (0.0,) * CLASSES
        self._seen = [[0.0] * _BUCKETS for _ in range(CLASSES)]
        self._rate_rps = self._counted = 0.0

    def of(self, length_class: int | None) -> float:
        """Return a class's boost, s, 0..B; None: no prediction has come."""
        return 0.0 if length_class is None else self._boosts_s[length_class]

    def learn(self, length_class: int, service_s: float) -> None:
        """Take in how long a request of a class kept its slot, s."""
        self._seen[length_class][bisect(_BOUNDS_S, service_s)] += 1.0

    def adapt(self, arrivals: int, interval_s: float, slots: int) -> None:
        """Adapt to load and lengths; for now and then, not for every request.

        Args:
            arrivals: Requests that came in the interval.
            interval_s: Its length, s, > 0.
            slots: Requests that are served at the same time, >= 1; several count as one server
                that is as many times as fast.
        """
        self._counted = min(self._counted + arrivals, max(_MEMORY, arrivals))
        weight = arrivals / self._counted if arrivals else 0.0
        self._rate_rps += weight * (arrivals / interval_s - self._rate_rps)
        self._forget()
        counts = [sum(column) for column in zip(*self._seen, strict=True)]
        total = sum(counts)
        if total < _LEAST_SEEN:
            return
        mean_s = _mean(counts, _MIDDLES_S) / slots
        load = min(self._rate_rps * mean_s, _MOST_LOAD)
        if load <= 0:
            return
        services_s = [middle / slots for middle in _MIDDLES_S]
        theta = _thrift(load, slots) * _decay_rate(load / mean_s, counts, services_s)
        self._boosts_s = self._bounded([_boost_s(theta, seen, services_s) for seen in self._seen])

    def _bounded(self, boosts_s: Sequence[float | None]) -> tuple[float, ...]:
        """Return boosts above that of the longest class, each within 0..B, falling with length.

        A class of which nothing is known is ranked as the next longer one.
        """
        found: list[float] = []
        below = 0.0
        known = [boost for boost in boosts_s if boost is not None]
        least = min(known)
        for boost in reversed(boosts_s):
            below = max(below, 0.0 if boost is None else boost - least)
            found.append(min(below, self._most_s))
        return tuple(reversed(found))

    def _forget(self) -> None:
        """Halve what is known once it is much, so that newer requests count for more."""
        if sum(map(sum, self._seen)) > _MOST_SEEN:
            self._seen = [[count / 2 for count in seen] for seen in self._seen]


def _thrift(load: float, slots: int) -> float:
    """Return theta over gamma: about half at up to 70 % load, more above: 0.85 at 95 %.

    With many slots little of the tail is waiting that could be moved: it grows with half of them.
    """
    return max(0.48 + 1.5 * (load - 0.7), 0.48) * max(1.0, slots / 2)


def _decay_rate(rate_rps: float, counts: Sequence[float], services_s: Sequence[float]) -> float:
    """Return gamma > 0 with rate x (E[exp(gamma S)] - 1) = gamma; it is 0 at full load."""

    def excess(gamma: float) -> float:
        return rate_rps * (_moment(gamma, counts, services_s) - 1.0) - gamma

    high = 1.0 / max(service for service, count in zip(services_s, counts, strict=True) if count)
    while excess(high) < 0:
        high *= 2.0
    low = 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return (low + high) / 2


def _boost_s(theta: float, counts: Sequence[float], services_s: Sequence[float]) -> float | None:
    """Return a class's boost, s; None where nothing is known of it."""
    if not any(counts):
        return None
    moment = _moment(theta, counts, services_s)
    return log(moment / (moment - 1.0)) / theta if isfinite(moment) else 0.0


def _moment(theta: float, counts: Sequence[float], services_s: Sequence[float]) -> float:
    """Return E[exp(theta S)]."""
    return _mean(counts, [exp(min(theta * service, 700.0)) for service in services_s])


def _mean(counts: Sequence[float], values: Sequence[float]) -> float:
    return sum(c * v for c, v in zip(counts, values, strict=True)) / sum(counts)

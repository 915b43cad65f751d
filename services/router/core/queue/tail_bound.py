"""Boosts, and what they do to the tail of the time in the system, for one server. Pure.

A request's rank is its arrival less its class's boost. Waits have an exponential tail,
P(time > t) ~ C exp(-gamma t), whose rate no order without preemption can improve: only C.

Source: Yu, Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", SIGMETRICS 2024;
for partial knowledge Harlev, Yu, Scully, "A Gittins Policy for Optimizing Tail Latency", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, log1p

_STEPS = 50
_MAX_EXPONENT = 500.0

Counts = Sequence[float]
"""Requests by how long they kept the server."""


@dataclass(frozen=True)
class ServiceTimes:
    """Observed requests, by class and by how long they kept the server; at least one.

    Attributes:
        services_s: Times that requests kept the server, s, ascending.
        classes: Of each class, the shortest first, how many requests took each of these times.
    """

    services_s: Sequence[float]
    classes: Sequence[Counts]

    @cached_property
    def counts(self) -> Counts:
        """Requests of any class."""
        return [sum(column) for column in zip(*self.classes, strict=True)]

    @cached_property
    def mean_s(self) -> float:
        """E[S]."""
        return _mean(self.counts, self.services_s)

    @cached_property
    def square_s2(self) -> float:
        """E[S^2]."""
        return _mean(self.counts, [service * service for service in self.services_s])

    def decay_rate(self, rate_rps: float) -> float:
        """Return gamma > 0, 1/s: rate x (E[exp(gamma S)] - 1) = gamma.

        Args:
            rate_rps: Arrivals, below what can be served.
        """

        def excess(gamma: float) -> float:
            return rate_rps * _mean(self.counts, self._grown(gamma)) - gamma

        high = 1.0 / self.services_s[-1]
        while excess(high) < 0:
            high *= 2.0
        low = 0.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        return (low + high) / 2

    def boosts_s(self, theta: float) -> list[float]:
        """Return each class's boost over the longest one's, s, >= 0, falling with length.

        b(c) = ln(M(c) / (M(c) - 1)) / theta with M(c) = E[exp(theta S) | class c]; a class of which
        nothing is known is ranked as the next longer one. With theta = gamma C is least.
        """
        grown = self._grown(theta)
        free = [_boost_s(theta, counts, grown) for counts in self.classes]
        below = longest = next(boost for boost in reversed(free) if boost is not None)
        found = []
        for boost in reversed(free):
            below = below if boost is None else max(below, boost)
            found.append(below - longest)
        return found[::-1]

    def growth(self, gamma: float, rate_rps: float, boosts_s: Sequence[float]) -> float:
        """Return C over what it is in order of arrival.

        E[exp(gamma (S - b))] exp(rate E[b (exp(gamma S) - 1)]) / E[exp(gamma S)]: each goes ahead
        by its own boost, and behind requests that come within the boosts of others.
        """
        grown, requests = self._grown(gamma), [sum(counts) for counts in self.classes]
        more = [_sum(counts, grown) for counts in self.classes]
        each = list(zip(boosts_s, requests, more, strict=True))
        ahead = sum((n + m) * exp(-gamma * b) for b, n, m in each) / (sum(requests) + sum(more))
        behind = rate_rps * sum(b * m for b, _, m in each) / sum(requests)
        return ahead * exp(min(behind, _MAX_EXPONENT))

    def _grown(self, theta: float) -> Sequence[float]:
        """Return exp(theta S) - 1."""
        return [expm1(min(theta * service, _MAX_EXPONENT)) for service in self.services_s]


def _boost_s(theta: float, counts: Counts, grown: Sequence[float]) -> float | None:
    """Return a class's boost, s; None where nothing is known of it."""
    if not any(counts):
        return None
    return log1p(1.0 / _mean(counts, grown)) / theta


def _mean(counts: Counts, values: Sequence[float]) -> float:
    return _sum(counts, values) / sum(counts)


def _sum(counts: Counts, values: Sequence[float]) -> float:
    return sum(c * v for c, v in zip(counts, values, strict=True))

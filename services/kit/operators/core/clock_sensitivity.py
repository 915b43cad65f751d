"""What an operator's time does when the clock falls: mu-Serve's sensitivity (ATC'24, section 3.1).

The score is the relative increase of latency over the relative decrease of the clock, from the
default clock to half of it: 0 where latency stays, 2 where it doubles. mu-Serve calls operators
below 1 insensitive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CLOCK_DROP: Final = 0.5
"""The other clock is half the default one."""

INSENSITIVE: Final = 1.0
"""Operators with lower scores hardly notice the clock (mu-Serve, section 4.4)."""

MOST: Final = 2.0
"""Score of what slows down in proportion to the clock."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Times of an operator, or of several, one after the other.

    Attributes:
        latency_s: At the default clock, s.
        half_clock_s: At half of it, s.
    """

    latency_s: float
    half_clock_s: float

    @property
    def score(self) -> float:
        """Its sensitivity, 0..2; of several: their mean, weighted by their time."""
        if not self.latency_s:
            return 0.0
        increase = (self.half_clock_s - self.latency_s) / self.latency_s
        return min(max(increase / CLOCK_DROP, 0.0), MOST)

    @property
    def clock_sensitivity(self) -> float:
        """The same as a deployment's `clock_sensitivity`, 0..1."""
        return self.score / MOST


FREE: Final = Cost(0.0, 0.0)


def total(costs: Iterable[Cost]) -> Cost:
    """Return what several cost together."""
    known = list(costs)
    return Cost(sum(c.latency_s for c in known), sum(c.half_clock_s for c in known))

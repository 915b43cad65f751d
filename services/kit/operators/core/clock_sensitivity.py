"""Sensitivity of an operator's latency to the clock (mu-Serve, ATC'24, section 3.1).

The score is the relative increase of latency over the relative decrease of the clock, from the
default clock to half of it: 0 where latency stays, 2 where it doubles. mu-Serve calls operators
below 1 insensitive.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CLOCK_DROP: Final = 0.5
"""Relative decrease of the clock."""

INSENSITIVE: Final = 1.0
"""Score below which an operator is insensitive to the clock (mu-Serve, section 4.4)."""

MAX_SCORE: Final = 2.0
"""Score of latency inversely proportional to the clock."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Latencies of an operator, or of several in sequence.

    Attributes:
        latency_s: Latency at the default clock, s.
        half_clock_s: Latency at half of it, s.
    """

    latency_s: float
    half_clock_s: float

    @property
    def score(self) -> float:
        """Sensitivity, 0..2; of several operators their mean, weighted by latency."""
        if not self.latency_s:
            return 0.0
        increase = (self.half_clock_s - self.latency_s) / self.latency_s
        return min(max(increase / CLOCK_DROP, 0.0), MAX_SCORE)

    @property
    def clock_sensitivity(self) -> float:
        """The score as a deployment's `clock_sensitivity`, 0..1."""
        return self.score / MAX_SCORE


FREE: Final = Cost(0.0, 0.0)


def total(costs: Iterable[Cost]) -> Cost:
    """Return the costs of several operators in sequence."""
    known = list(costs)
    return Cost(sum(c.latency_s for c in known), sum(c.half_clock_s for c in known))

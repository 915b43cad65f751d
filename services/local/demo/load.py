"""The load, and what became of each request."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to send: when, s after the start, and which held-out image."""

    at_s: float
    image: int


def arrivals(rate_rps: float, duration_s: float, images: int, seed: int) -> tuple[Arrival, ...]:
    """Return a Poisson process: equal seeds give equal arrivals.

    Args:
        rate_rps: Mean rate, req/s, > 0.
        duration_s: Arrivals lie in [0, duration_s), s.
        images: Images are drawn uniformly from range(images).
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_rps * duration_s)
    # Given their number, a Poisson process's arrivals are uniform and independent.
    times_s = np.sort(rng.uniform(0.0, duration_s, count))
    picks = rng.integers(images, size=count)
    return tuple(
        Arrival(float(at_s), int(image)) for at_s, image in zip(times_s, picks, strict=True)
    )


@dataclass(slots=True)
class RequestStats:
    """Account of every request sent to one suite: sent = answered + lost + still open.

    Attributes:
        sent: Requests sent.
        correct: Answers whose label was right.
        latencies_s: Of the answered, from the planned moment of sending to the answer, s.
        losses: Reasons of the lost, by how often.
    """

    sent: int = 0
    correct: int = 0
    latencies_s: list[float] = field(default_factory=list)
    losses: Counter[str] = field(default_factory=Counter)

    def answer(self, latency_s: float, *, correct: bool) -> None:
        """Count an answer."""
        self.latencies_s.append(latency_s)
        self.correct += correct

    def lose(self, reason: str) -> None:
        """Count a request that ended without an answer."""
        self.losses[reason] += 1

    @property
    def answered(self) -> int:
        """Requests answered, right or wrong."""
        return len(self.latencies_s)

    @property
    def lost(self) -> int:
        """Requests that ended in an error."""
        return self.losses.total()

    @property
    def accuracy(self) -> float:
        """Measured share of right answers; 0 before any."""
        return self.correct / self.answered if self.answered else 0.0

    def quantile_s(self, percentile: float) -> float:
        """Return a latency quantile, s; 0 before any answer."""
        return float(np.percentile(self.latencies_s, percentile)) if self.latencies_s else 0.0

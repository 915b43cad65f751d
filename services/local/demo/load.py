"""The load, and the outcome of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to send: when, s after the start, to which model, and which held-out image."""

    at_s: float
    model: str
    image: int


def arrivals(
    rates_rps: Mapping[str, float], duration_s: float, images: int, seed: int
) -> tuple[Arrival, ...]:
    """Return a Poisson process for each model, merged: equal seeds give equal arrivals.

    Args:
        rates_rps: Mean rate by model, req/s, > 0.
        duration_s: Arrivals lie in [0, duration_s), s.
        images: Images are drawn uniformly from range(images).
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    models, rates = list(rates_rps), np.array(list(rates_rps.values()))
    count = rng.poisson(rates.sum() * duration_s)
    # Given their number, a Poisson process's arrivals are uniform and independent.
    times_s = np.sort(rng.uniform(0.0, duration_s, count))
    # A process whose arrivals are marked at random is the sum of one process for each mark.
    marks = rng.choice(len(models), size=count, p=rates / rates.sum())
    picks = rng.integers(images, size=count)
    return tuple(
        Arrival(float(at_s), models[mark], int(image))
        for at_s, mark, image in zip(times_s, marks, picks, strict=True)
    )


@dataclass(slots=True)
class RequestStats:
    """Account of every request sent to one model of a suite: sent = answered + lost + still open.

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

    @classmethod
    def total(cls, each: Iterable[RequestStats]) -> RequestStats:
        """Return the account of several models together."""
        whole = cls()
        for one in each:
            whole.sent += one.sent
            whole.correct += one.correct
            whole.latencies_s += one.latencies_s
            whole.losses += one.losses
        return whole

"""How long the answers to one prompt were."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

MEMORY: Final = 8
"""Answers that a mean is of, about; older ones fade."""

_GIVE_UP_AFTER: Final = 2
_LEAST_SPREAD: Final = 0.25
_DECILE: Final = 1.2816
"""Standard deviations between a normal distribution's mean and its outermost tenth."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Answers' lengths, the recent ones counting more.

    Attributes:
        count: Answers.
        mean_tokens: Mean, tokens.
        deviation_tokens: Standard deviation, tokens.
        astray: Answers in a row, the last ones, of less than half or more than twice the mean.
    """

    count: int
    mean_tokens: float
    deviation_tokens: float = 0.0
    astray: int = 0

    @classmethod
    def of(cls, tokens: float) -> Lengths:
        """Return what one answer tells."""
        return cls(1, tokens)

    def far(self, tokens: float) -> bool:
        """Tell whether a length is less than half or more than twice the mean."""
        return abs(tokens - self.mean_tokens) > max(tokens, self.mean_tokens) / 2

    def then(self, tokens: float) -> Lengths:
        """Return these with one more answer; the second in a row that is far begins anew.

        So a model that was exchanged is believed after two answers, and one odd answer moves the
        mean only.
        """
        astray = self.astray + 1 if self.far(tokens) else 0
        if astray >= _GIVE_UP_AFTER:
            return Lengths.of(tokens)
        weight = 1 / min(self.count + 1, MEMORY)
        difference = tokens - self.mean_tokens
        variance = (1 - weight) * (self.deviation_tokens**2 + weight * difference**2)
        mean = self.mean_tokens + weight * difference
        return Lengths(self.count + 1, mean, sqrt(variance), astray)

    def range_tokens(self) -> tuple[float, float]:
        """Return what one answer in ten is below, and one in ten above, tokens.

        As of a normal distribution; few answers say little of their spread, so it is taken to be
        at least a quarter of the mean over the root of their number.
        """
        least = _LEAST_SPREAD * self.mean_tokens / sqrt(self.count)
        half = _DECILE * max(self.deviation_tokens, least)
        return max(self.mean_tokens - half, 0.0), self.mean_tokens + half

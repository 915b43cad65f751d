"""Lengths of the answers to one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

WINDOW_ANSWERS: Final = 8
"""Number of answers that a mean is effectively of."""

_MAX_OUTLIERS: Final = 2
_MIN_SPREAD: Final = 0.25
_DECILE: Final = 1.2816
"""Standard deviations between a normal distribution's mean and its outermost tenth."""


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """Mean and spread of lengths; recent answers weigh more.

    Attributes:
        count: Number of answers.
        mean_tokens: Mean, tokens.
        deviation_tokens: Standard deviation, tokens.
        outliers: Number of latest answers in a row that were outliers.
    """

    count: int
    mean_tokens: float
    deviation_tokens: float = 0.0
    outliers: int = 0

    @classmethod
    def of(cls, tokens: float) -> AnswerLengths:
        """Return the lengths after the first answer."""
        return cls(1, tokens)

    def is_outlier(self, tokens: float) -> bool:
        """Return whether a length is less than half or more than twice the mean."""
        return abs(tokens - self.mean_tokens) > max(tokens, self.mean_tokens) / 2

    def updated(self, tokens: float, *, truncated: bool = False) -> AnswerLengths:
        """Return the lengths after one more answer; the second outlier in a row starts afresh.

        So a replaced model is trusted after two answers, and a single outlier only moves the mean.
        A truncated answer that is no longer than the mean says nothing; a longer one counts as what
        there is of it, the least that it can have been (as Kaplan and Meier's estimator with
        Efron's rule for the longest).
        """
        if truncated and tokens <= self.mean_tokens:
            return self
        outliers = self.outliers + 1 if self.is_outlier(tokens) else 0
        if outliers >= _MAX_OUTLIERS:
            return AnswerLengths.of(tokens)
        weight = 1 / min(self.count + 1, WINDOW_ANSWERS)
        difference = tokens - self.mean_tokens
        variance = (1 - weight) * (self.deviation_tokens**2 + weight * difference**2)
        mean = self.mean_tokens + weight * difference
        return AnswerLengths(self.count + 1, mean, sqrt(variance), outliers)

    def range_tokens(self) -> tuple[float, float]:
        """Return the lengths that one answer in ten is below, and one in ten above, tokens.

        For a normal distribution whose standard deviation is at least a quarter of the mean over
        the square root of the number of answers: a few answers do not show their spread.
        """
        minimum = _MIN_SPREAD * self.mean_tokens / sqrt(self.count)
        half = _DECILE * max(self.deviation_tokens, minimum)
        return max(self.mean_tokens - half, 0.0), self.mean_tokens + half

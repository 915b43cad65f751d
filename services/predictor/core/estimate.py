"""An estimate of an answer's length."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

EstimateSource = Literal["model", "prior", "cache"]
"""The proxy model, the served model's prior, or answers seen before."""

CLASS_COUNT = 5
"""Number of length classes, cut at `CLASS_RANKS` of a served model's own answers."""

CLASS_RANKS = (0.25, 0.50, 0.75, 0.99)
"""Where the classes are cut. Source: Qiu et al., "mu-Serve", ATC 2024, section 3.3."""

CLASS_MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *CLASS_RANKS, 1.0)))
"""Rank in the middle of each class."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Where a served model's answers end at the latest.

    Attributes:
        context_tokens: Its context, prompt included, tokens; no answer is longer.
        default_tokens: Length at which answers to requests without a limit are cut off, tokens.
    """

    context_tokens: int = 1_000_000
    default_tokens: int = 1_000_000

    def of_request(self, max_tokens: int) -> int:
        """Return the limit of a request's answer, tokens; `max_tokens` 0: it names none."""
        return min(max_tokens or self.default_tokens, self.context_tokens)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An expected length with its range.

    Attributes:
        expected_tokens: Expected length, tokens.
        class_: Likeliest class, 0 (shortest quarter) to 4 (longest hundredth) of the served
            model's own answers.
        low_tokens: Length that one answer in ten is below, tokens.
        high_tokens: Length that one answer in ten is above, tokens.
        source: What the estimate is based on.
        probabilities: Class probabilities of the proxy model before calibration, shape (5,); empty
            without the proxy model. The calibration learns from them and the true length.
    """

    expected_tokens: float
    class_: int
    low_tokens: float
    high_tokens: float
    source: EstimateSource
    probabilities: tuple[float, ...] = ()

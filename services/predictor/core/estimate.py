"""What is foretold of an answer's length, and who foretells it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Source = Literal["model", "prior", "cache"]
"""Who said it: the proxy model, what is known of the served model alone, or an answer seen."""

CLASS_COUNT = 5
"""Classes of length, cut at `CLASS_RANKS` of a served model's own answers."""

CLASS_RANKS = (0.25, 0.50, 0.75, 0.99)
"""Where the classes are cut. Source: Qiu et al., "mu-Serve", ATC 2024, section 3.3."""

CLASS_MIDDLES = tuple((low + high) / 2 for low, high in pairwise((0.0, *CLASS_RANKS, 1.0)))
"""Rank in the middle of each class."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long an answer is going to be.

    Attributes:
        expected_tokens: Mean of what is likely, tokens.
        class_: The likeliest class, 0 (shortest quarter) to 4 (longest hundredth) of the served
            model's own answers.
        low_tokens: One answer in ten is shorter, tokens.
        high_tokens: One answer in ten is longer, tokens.
        source: Who said it.
        probabilities: What the proxy model said of each class, before calibration, shape (5,);
            empty where it was not asked. With it, the true length teaches the calibration.
    """

    expected_tokens: float
    class_: int
    low_tokens: float
    high_tokens: float
    source: Source
    probabilities: tuple[float, ...] = ()

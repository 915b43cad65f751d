"""How long a model's answers are: counts by length, older ones weighing less."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.kit.sketch import Buckets

TOKENS: Final = Buckets.spanning(1.0, 1e6, 1.03)
"""Lengths from 1 to a million tokens, within 1.5 %."""

VALUES_TOKENS: Final = np.array([TOKENS.value(index) for index in range(TOKENS.count)])
"""The length that stands for each bucket, tokens."""

_DECAY_ANSWERS: Final = 5000
"""Number of answers after which the weight of one has fallen to 1/e."""

_GROWTH: Final = 1 / (1 - 1 / _DECAY_ANSWERS)
_MAX_UNIT: Final = 1e9


class LengthHistogram:
    """Weights of lengths in buckets that each are 3 % wider than the one below.

    Args:
        weights: By bucket, shape (TOKENS.count,), >= 0; none: no lengths yet.
    """

    __slots__ = ("_unit", "_weights")

    def __init__(self, weights: NDArray[np.float64] | None = None) -> None:
        self._weights = np.zeros(TOKENS.count) if weights is None else weights.astype(np.float64)
        self._unit = 1.0

    def add(self, tokens: float) -> None:
        """Count one length, tokens."""
        # New weights grow instead of old ones shrinking: only one bucket changes.
        self._unit *= _GROWTH
        if self._unit > _MAX_UNIT:
            self._weights, self._unit = self._weights / self._unit, 1.0
        self._weights[TOKENS.index(tokens)] += self._unit

    def rank(self, tokens: float) -> float:
        """Return the share of lengths below `tokens`, 0..1; half of those in its own bucket."""
        index = TOKENS.index(tokens)
        below = float(self._weights[:index].sum()) + float(self._weights[index]) / 2
        return below / float(self._weights.sum())

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights by bucket, shape (TOKENS.count,): 1 for a new answer, decaying."""
        return self._weights / self._unit


def parts(weights: NDArray[np.float64], ranks: tuple[float, ...]) -> NDArray[np.float64]:
    """Return a distribution cut at `ranks`: its share of each part in each bucket.

    Args:
        weights: By bucket, shape (TOKENS.count,), not all 0.
        ranks: Where to cut, ascending, in (0, 1).

    Returns:
        Each part's own distribution, shape (len(ranks) + 1, TOKENS.count); rows sum to 1.
    """
    above = np.cumsum(weights) / weights.sum()
    above[-1] = 1.0
    cuts = np.array((0.0, *ranks, 1.0))
    within = np.clip(above, cuts[:-1, None], cuts[1:, None]) - cuts[:-1, None]
    shares = np.diff(within, axis=1, prepend=0.0) / np.diff(cuts)[:, None]
    return np.asarray(shares)


def quantile_tokens(weights: NDArray[np.float64], rank: float) -> float:
    """Return the length below which a part `rank` (0..1) of a distribution lies, tokens."""
    above = np.cumsum(weights)
    return float(VALUES_TOKENS[min(np.searchsorted(above, rank * above[-1]), TOKENS.count - 1)])

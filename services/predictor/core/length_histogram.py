"""How long a model's answers are: counts by length, the older the fainter."""

from __future__ import annotations

from math import log
from typing import Final

import numpy as np
from numpy.typing import NDArray

_GAMMA: Final = 1.03
_PER_LOG: Final = 1 / log(_GAMMA)
_LONGEST_TOKENS: Final = 1e6
BUCKETS: Final = int(log(_LONGEST_TOKENS) * _PER_LOG) + 1
"""Lengths from 1 to a million tokens; what lies beyond counts as that."""

MIDDLES_TOKENS: Final = _GAMMA ** (np.arange(BUCKETS) + 0.5)
"""The length that stands for each bucket's, within 1.5 %, tokens."""

_MEMORY: Final = 5000
"""Answers after which one has faded to 1/e."""

_GROWTH: Final = 1 / (1 - 1 / _MEMORY)
_LARGEST_UNIT: Final = 1e9


class Sketch:
    """Lengths in buckets that each are 3 % wider than the one below.

    Source: Masson, Rim, Lee, "DDSketch", VLDB 2019, section 2.1, with a fixed range instead of
    buckets that collapse, and with fading.

    Args:
        weights: By bucket, shape (BUCKETS,), >= 0; none: nothing seen.
    """

    __slots__ = ("_unit", "_weights")

    def __init__(self, weights: NDArray[np.float64] | None = None) -> None:
        self._weights = np.zeros(BUCKETS) if weights is None else weights.astype(np.float64)
        self._unit = 1.0

    def add(self, tokens: float) -> None:
        """Count one length, tokens."""
        # The new grow instead of the old shrinking: one bucket is touched.
        self._unit *= _GROWTH
        if self._unit > _LARGEST_UNIT:
            self._weights, self._unit = self._weights / self._unit, 1.0
        self._weights[bucket(tokens)] += self._unit

    def rank(self, tokens: float) -> float:
        """Return the share of lengths below one, 0..1; of those in its own bucket, half."""
        place = bucket(tokens)
        below = float(self._weights[:place].sum()) + float(self._weights[place]) / 2
        return below / float(self._weights.sum())

    @property
    def weights(self) -> NDArray[np.float64]:
        """By bucket, shape (BUCKETS,): an answer counts 1 when new, and fades."""
        return self._weights / self._unit


def bucket(tokens: float) -> int:
    """Return a length's bucket."""
    return int(log(min(max(tokens, 1.0), _LONGEST_TOKENS)) * _PER_LOG)


def parts(weights: NDArray[np.float64], ranks: tuple[float, ...]) -> NDArray[np.float64]:
    """Return a distribution cut at `ranks`: its share of each part in each bucket.

    Args:
        weights: By bucket, shape (BUCKETS,), not all 0.
        ranks: Where to cut, ascending, in (0, 1).

    Returns:
        Each part's own distribution, shape (len(ranks) + 1, BUCKETS); rows sum to 1.
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
    return float(MIDDLES_TOKENS[min(np.searchsorted(above, rank * above[-1]), BUCKETS - 1)])

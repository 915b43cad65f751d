"""Histogram of a model's answer lengths, older answers weighing less."""

from collections.abc import Sequence
from typing import Final, Self

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

    An answer that was cut off shows only that its length is at least what there is of it: such
    weights are kept apart, and never count as lengths (see `kaplan_meier`).

    Args:
        weights: Of whole answers and of truncated ones by bucket, shape (2, TOKENS.count), >= 0;
            none: no lengths yet.
    """

    __slots__ = ("_unit", "_weights")

    def __init__(self, weights: NDArray[np.float64] | None = None) -> None:
        self._weights = np.zeros((2, TOKENS.count)) if weights is None else weights.astype(float)
        self._unit = 1.0

    @classmethod
    def of(cls, tokens: Sequence[float], truncated: Sequence[bool]) -> Self:
        """Return the histogram of a log, whose order says nothing: all answers weigh the same.

        Together they weigh at most as much as any number of answers added one by one.

        Args:
            tokens: Lengths, tokens; at least one.
            truncated: Of each, whether the answer was cut off there.
        """
        weights = np.zeros((2, TOKENS.count))
        weight = min(1.0, _DECAY_ANSWERS / len(tokens))
        for each, cut in zip(tokens, truncated, strict=True):
            weights[int(cut), TOKENS.index(each)] += weight
        return cls(weights)

    def add(self, tokens: float, *, truncated: bool = False) -> None:
        """Count one length, tokens; truncated: the answer was cut off there.

        Only whole answers make older ones fade: answers of one token each, however many, do not.
        """
        # New weights grow instead of old ones shrinking: only one bucket changes.
        self._unit *= 1.0 if truncated else _GROWTH
        if self._unit > _MAX_UNIT:
            self._weights, self._unit = self._weights / self._unit, 1.0
        self._weights[int(truncated), TOKENS.index(tokens)] += self._unit

    def rank(self, tokens: float) -> float:
        """Return the share of lengths below `tokens`, 0..1; half of those in its own bucket."""
        index, whole = TOKENS.index(tokens), self._weights[0]
        return (float(whole[:index].sum()) + float(whole[index]) / 2) / float(whole.sum())

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of whole and of truncated answers, shape (2, TOKENS.count): 1 for a new one."""
        return self._weights / self._unit


def kaplan_meier(whole: NDArray[np.float64], truncated: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distribution of lengths that whole and truncated answers show, sum 1.

    The product-limit estimator: of the answers that reach a bucket, truncated there or later
    included, the share that ends in it. Where the longest answers are truncated, what remains lies
    at the last bucket that was reached (Efron).

    Args:
        whole: Weights of whole answers by bucket, shape (TOKENS.count,), not all 0.
        truncated: Weights of truncated answers by the bucket they were cut off in, same shape.

    Source: Kaplan, Meier, "Nonparametric Estimation from Incomplete Observations", JASA 53, 1958;
    Efron, "The Two Sample Problem with Censored Data", 1967.
    """
    reached = np.cumsum((whole + truncated)[::-1])[::-1]
    ending = np.divide(whole, reached, out=np.zeros_like(whole), where=reached > 0)
    beyond = np.cumprod(1 - np.minimum(ending, 1.0))
    lengths = -np.diff(beyond, prepend=1.0)
    lengths[np.flatnonzero(reached)[-1]] += beyond[-1]
    return lengths


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

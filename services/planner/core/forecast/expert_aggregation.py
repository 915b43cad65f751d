"""Aggregation of expert forecasts, weighted by the loss that each would have saved.

ML-Poly (Gaillard, Stoltz and van Erven, "A Second-order Bound with Excess Losses", COLT 2014,
section 3.2), with absolute losses and their gradients. An expert's weight is its positive regret,
the loss it would have saved, over the sum of its squared regrets. There is nothing to tune, and the
mean loss tends to that of the best fixed mixture of the experts for any outcomes: after n of them
it exceeds that by O(sqrt(log(n) * experts / n)).
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_TINY = 1e-300
"""Keeps weights finite where squared errors underflow to 0."""


class ExpertAggregation:
    """Weights of `experts` experts after all outcomes so far; equal at first."""

    def __init__(self, experts: int) -> None:
        self._regrets = np.zeros(experts)
        self._squares = np.zeros(experts)
        self._largest = 0.0

    @property
    def weights(self) -> Vector:
        """Weights of the experts, >= 0, with a sum of 1."""
        gains = np.maximum(self._regrets, 0.0)
        found: Vector = gains / (self._squares + self._largest**2 + _TINY)
        total = found.sum()
        if total < _TINY:  # no expert was better than the mixture
            return np.full(len(gains), 1.0 / len(gains))
        weights: Vector = found / total
        return weights

    def combine(self, opinions: Vector) -> float:
        """Return the weighted mean of the opinions, shape (experts,)."""
        return float(self.weights @ opinions)

    def learn(self, opinions: Vector, outcome: float) -> None:
        """Update the weights with an outcome.

        Args:
            opinions: The combined opinions, shape (experts,).
            outcome: The outcome.
        """
        said = self.combine(opinions)
        regrets = np.sign(said - outcome) * (said - opinions)
        self._largest = max(self._largest, float(np.abs(regrets).max()))
        self._regrets += regrets
        self._squares += regrets**2

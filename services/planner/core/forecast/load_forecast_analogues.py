"""Outcomes of similar situations: a bounded memory with nearest-neighbour search."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

ROUNDING = 1e-12
"""Rounding error of floating point, so that half of two equal outcomes is one of them."""


class Sample(NamedTuple):
    """A distribution: weighted outcomes.

    Attributes:
        outcomes: Outcomes, shape (n,).
        weights: Weights > 0, shape (n,), with a sum of 1.
    """

    outcomes: Vector
    weights: Vector

    def quantile(self, level: float) -> float:
        """Return the least outcome that at least a share of `level` does not exceed."""
        least = max(level - ROUNDING, 0.0)
        return float(np.quantile(self.outcomes, least, weights=self.weights, method="inverted_cdf"))


def mixture(one: Sample, other: Sample, weight: float) -> Sample:
    """Return a mixture in which `other` has `weight`, 0..1."""
    return Sample(
        np.concatenate([one.outcomes, other.outcomes]),
        np.concatenate([(1.0 - weight) * one.weights, weight * other.weights]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Similarity of situations.

    Attributes:
        weights: Weights of the features, shape (features,); distances are weighted Euclidean.
        softness: Squared distance at which a neighbour counts half as much as an equal situation.
        neighbours: Number of nearest neighbours.
    """

    weights: Vector
    softness: float
    neighbours: int = 40


class Analogues:
    """The last `memory` situations and their outcomes."""

    def __init__(self, memory: int, features: int) -> None:
        self._situations = np.zeros((memory, features))
        self._slots = np.zeros(memory, dtype=np.int64)
        self._outcomes = np.zeros(memory)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, len(self._outcomes))

    def add(self, situation: Vector, slot: int, outcome: float) -> None:
        """Add an outcome, in place of the oldest one.

        Args:
            situation: Features, shape (features,).
            slot: Place in the season.
            outcome: The outcome.
        """
        row = self._added % len(self._outcomes)
        self._situations[row] = situation
        self._slots[row] = slot
        self._outcomes[row] = outcome
        self._added += 1

    def near(self, situation: Vector, likeness: Likeness, slot: int | None = None) -> Sample:
        """Return the outcomes of the most similar situations; empty where there is none.

        Args:
            situation: Features, shape (features,).
            likeness: Similarity to search by.
            slot: Search only this place in the season; None: anywhere.
        """
        count = len(self)
        rows = slice(count) if slot is None else np.flatnonzero(self._slots[:count] == slot)
        outcomes = self._outcomes[rows]
        away = (self._situations[rows] - situation) * likeness.weights
        distances = np.einsum("ij,ij->i", away, away)
        if len(outcomes) > likeness.neighbours:
            nearest = np.argpartition(distances, likeness.neighbours)[: likeness.neighbours]
            distances, outcomes = distances[nearest], outcomes[nearest]
        weights = 1.0 / (likeness.softness + distances)
        return Sample(outcomes, weights / weights.sum())

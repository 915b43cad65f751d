"""Quality of predictions: of classes, and of which of two answers is longer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.predictor.core.estimate import CLASS_COUNT

_PAIRS = 200_000


@dataclass(frozen=True, slots=True)
class Measures:
    """Quality of predictions.

    Attributes:
        accuracy: Share of right classes, 0..1.
        f1: Mean over the classes that occur of the harmonic mean of precision and recall, 0..1.
        l1: Mean distance of the classes, 0..4.
        mse: Mean squared distance of the classes, 0..16.
        pair_order: Share of pairs of answers in the right order; 0.5 is chance.
    """

    accuracy: float
    f1: float
    l1: float
    mse: float
    pair_order: float


def measure(
    true: NDArray[np.int64],
    tokens: NDArray[np.float64],
    classes: NDArray[np.int64],
    scores: NDArray[Any],
) -> Measures:
    """Return the quality of predictions.

    Args:
        true: True classes, 0..4, shape (n,), n >= 1.
        tokens: True lengths, shape (n,).
        classes: Predicted classes, shape (n,).
        scores: Larger for longer predicted answers, shape (n,).
    """
    away = np.abs(true - classes)
    return Measures(
        accuracy=float(np.mean(true == classes)),
        f1=_f1(confusion(true, classes)),
        l1=float(away.mean()),
        mse=float((away**2).mean()),
        pair_order=pair_order(tokens, scores),
    )


def confusion(true: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts of predicted classes (columns) by true class (rows), shape (5, 5)."""
    counts = np.zeros((CLASS_COUNT, CLASS_COUNT), np.int64)
    np.add.at(counts, (true, classes), 1)
    return counts


def pair_order(tokens: NDArray[np.float64], scores: NDArray[Any]) -> float:
    """Return how often the longer of two answers has the larger score; ties count half.

    Of all pairs of different lengths, or of 200,000 pairs drawn with a fixed seed; 0.5 where all
    lengths are equal.
    """
    count = len(tokens)
    if count * count <= _PAIRS:
        first, second = np.divmod(np.arange(count * count), count)
    else:
        first, second = np.random.default_rng(0).integers(0, count, (2, _PAIRS))
    by_length = np.sign(tokens[first] - tokens[second])
    by_score = np.sign(scores[first] - scores[second])
    differ = by_length != 0
    return float(np.mean((1 + by_length * by_score)[differ]) / 2) if differ.any() else 0.5


def _f1(counts: NDArray[np.int64]) -> float:
    right, occurs = np.diag(counts), counts.sum(axis=1) > 0
    parts = 2 * right / np.maximum(counts.sum(axis=0) + counts.sum(axis=1), 1)
    return float(parts[occurs].mean())

"""Accuracy with which the other answers to a prompt predict one answer: a ceiling.

A model that samples answers the same prompt now shorter, now longer, and no text determines which.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from services.predictor.core.estimate import CLASS_COUNT, CLASS_RANKS
from services.predictor.training.core.metrics import Measures, measure
from services.predictor.training.core.rows import Row


def by_the_others(rows: Iterable[Row]) -> tuple[list[Row], NDArray[np.float64]]:
    """Return the answers of one model to prompts that it answered more than once.

    Returns:
        The answers, and for each the mean logarithm of the others' lengths, shape (answers,).
    """
    by_prompt: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt].append(row)
    several = [each for each in by_prompt.values() if len(each) > 1]
    means = [_means_of_others(np.log1p([row.tokens for row in each])) for each in several]
    return [row for each in several for row in each], np.concatenate(means)


def _means_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((values.sum() - values) / (len(values) - 1))


def ceiling(rows: Iterable[Row]) -> Measures:
    """Return how good predictions from the other answers to each prompt are.

    The class is the one most of them are of, the order that of their mean.
    """
    kept, means = by_the_others(rows)
    tokens = np.array([row.tokens for row in kept], np.float64)
    true = np.searchsorted(np.quantile(tokens, CLASS_RANKS), tokens)
    counts: dict[str, NDArray[np.int64]] = {}
    for row, class_ in zip(kept, true, strict=True):
        counts.setdefault(row.prompt, np.zeros(CLASS_COUNT, np.int64))[class_] += 1
    others = np.array([counts[row.prompt] for row in kept]) - np.eye(CLASS_COUNT)[true]
    return measure(true, tokens, others.argmax(axis=1), means)

"""Prompts as matrices: their features, weighted as in the network."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from services.predictor.core.features import BUCKETS, Grams, features

Sparse = Any
"""A `scipy.sparse` matrix: scipy has no types."""

_MIN_PROMPTS = 2
"""Prompts that an n-gram must occur in to be used."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Features of some prompts.

    Attributes:
        words: Counts of words and pairs, shape (n, BUCKETS).
        runs: Counts of runs, shape (n, BUCKETS).
        shallow: Plain counts, shape (n, len(SHALLOW)).
    """

    words: Sparse
    runs: Sparse
    shallow: NDArray[np.float64]


def seen(prompts: Sequence[str]) -> Seen:
    """Return the features of some prompts."""
    found = [features(prompt) for prompt in prompts]
    return Seen(
        _stacked([each.words for each in found]),
        _stacked([each.runs for each in found]),
        np.array([each.shallow for each in found], np.float64),
    )


def rarity(counts: Sparse) -> NDArray[np.float64]:
    """Return each column's inverse document frequency, shape (BUCKETS,); 0: not used."""
    prompts = np.bincount(counts.indices, minlength=BUCKETS)
    weights = np.log((1 + counts.shape[0]) / (1 + prompts)) + 1
    weights[prompts < _MIN_PROMPTS] = 0
    return np.asarray(weights)


def weighed(counts: Sparse, weights: NDArray[np.float64]) -> Sparse:
    """Return counts times weights, each row scaled to length 1 (or 0)."""
    scaled = counts.multiply(weights).tocsr()
    lengths = np.sqrt(scaled.multiply(scaled).sum(axis=1)).A1
    return sparse.diags(1 / np.maximum(lengths, 1e-9)) @ scaled


def directions(vectors: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the directions in which vectors differ most: their principal components.

    Args:
        vectors: Embeddings, shape (n, size).
        count: Number of directions, <= size.

    Returns:
        Unit vectors in columns, largest variance first, shape (size, count). The largest component
        of each is positive, so that their signs do not vary.
    """
    found = np.linalg.eigh(np.cov(vectors, rowvar=False)).eigenvectors[:, ::-1][:, :count]
    largest = found[np.abs(found).argmax(axis=0), np.arange(count)]
    return np.asarray(found * np.sign(largest))


def _stacked(grams: Sequence[Grams]) -> Sparse:
    ends = np.cumsum([0, *(len(each.columns) for each in grams)])
    values = np.concatenate([each.counts for each in grams]).astype(np.float64)
    columns = np.concatenate([each.columns for each in grams])
    return sparse.csr_matrix((values, columns, ends), shape=(len(grams), BUCKETS))

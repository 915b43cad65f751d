"""Training: the encoder first, then the head on what encoders that had not seen a prompt say.

mu-Serve (section 3.3) trains the head on a frozen encoder, then both together, because its encoder
comes from elsewhere. Here the encoder is linear and fitted to the same classes first; the head then
learns from encoders that are each asked about prompts they were not shown, as it will be in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from services.kit.errors import InvalidArgument
from services.predictor.classes import Classes
from services.predictor.estimate import CLASS_COUNT, CLASS_RANKS
from services.predictor.features import BUCKETS
from services.predictor.sketch import Sketch
from services.predictor.training.encoder import fit_encoder
from services.predictor.training.head import Head, fit_head
from services.predictor.training.matrix import Seen, Sparse, rarity, seen, weighed
from services.predictor.training.rows import Row, by_model

FOLDS = 4
STEPS = FOLDS + 3
"""How many steps training reports."""

LEAST_PROMPTS = 50
_ENCODER_RIDGE = 0.5

_HEAD_RIDGE_PER_PROMPT = 10.0
"""Answers to one prompt are alike: what the head may learn grows with prompts, not answers."""

Progress = Callable[[str], None]
Edges = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Trained:
    """A predictor that was trained.

    Attributes:
        rarity: Weight of each n-gram, words' columns first, shape (2 * BUCKETS,); 0: not used.
        encoder: What each n-gram says of each class, shape (2 * BUCKETS, 5).
        head: The head.
        edges_tokens: Of each served model it was trained on: percentiles 25, 50, 75, 99.
        prior: Lengths of all models' answers by bucket, each model weighing the same.
        classes: Of each served model, with every length seen.
    """

    rarity: NDArray[np.float64]
    encoder: NDArray[np.float64]
    head: Head
    edges_tokens: Edges
    prior: NDArray[np.float64]
    classes: dict[str, Classes]

    def probabilities(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """Return how likely each class is for models it was trained on, shape (n, 5)."""
        prompts = seen([row.prompt for row in rows])
        said = _grams(prompts, self.rarity) @ self.encoder
        return self.head.probabilities(_inputs(said, prompts, rows, self.edges_tokens))


def fit(rows: Sequence[Row], *, seed: int = 0, progress: Progress = lambda _: None) -> Trained:
    """Train a predictor.

    Args:
        rows: Answers of one or several served models; the same prompts help each other.
        seed: Draws folds and first weights: equal rows and seeds train equal predictors, on the
            same kind of machine.
        progress: Told what each of `STEPS` steps is, before it.

    Raises:
        InvalidArgument: Too few prompts.
    """
    with threadpool_limits(limits=1):  # sums come out the same only in the same order
        return _fit(rows, seed, progress)


def edges_tokens(rows: Sequence[Row]) -> Edges:
    """Return each served model's percentiles 25, 50, 75 and 99, tokens."""
    return {
        model: tuple(np.quantile([row.tokens for row in theirs], CLASS_RANKS).tolist())
        for model, theirs in by_model(rows).items()
    }


def true_classes(rows: Sequence[Row], edges: Edges) -> NDArray[np.int64]:
    """Return each answer's class, 0..4, shape (n,); an edge belongs to the class below."""
    return np.array([np.searchsorted(edges[row.model], row.tokens) for row in rows], np.int64)


def _fit(rows: Sequence[Row], seed: int, progress: Progress) -> Trained:
    progress("reading prompts")
    places = {
        prompt: place for place, prompt in enumerate(dict.fromkeys(row.prompt for row in rows))
    }
    if len(places) < LEAST_PROMPTS:
        raise InvalidArgument(
            f"{LEAST_PROMPTS} prompts are needed at least, got {len(places)}", field="data"
        )
    where = np.array([places[row.prompt] for row in rows])
    edges = edges_tokens(rows)
    classes = true_classes(rows, edges)
    prompts = seen(list(places))
    weights = np.concatenate((rarity(prompts.words), rarity(prompts.runs)))
    encoder, said = _encoded(_grams(prompts, weights), _counts(where, classes), seed, progress)
    progress("training the head")
    of_rows = Seen(None, None, prompts.shallow[where])
    ridge = _HEAD_RIDGE_PER_PROMPT / len(places)
    head = fit_head(_inputs(said[where], of_rows, rows, edges), classes, ridge, seed)
    prior, known = _known(rows)
    return Trained(weights, encoder, head, edges, prior, known)


def _encoded(
    grams: Sparse, counts: NDArray[np.float64], seed: int, progress: Progress
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the encoder, and what encoders say of prompts that they were not shown."""
    used = np.flatnonzero(np.bincount(grams.indices, minlength=grams.shape[1]))
    grams = grams[:, used]
    folds = np.random.default_rng(seed).integers(0, FOLDS, grams.shape[0])
    said = np.zeros(counts.shape)
    for fold in range(FOLDS):
        progress(f"training encoder {fold + 1} of {FOLDS + 1}")
        shown = folds != fold
        said[~shown] = grams[~shown] @ fit_encoder(grams[shown], counts[shown], _ENCODER_RIDGE)
    progress(f"training encoder {FOLDS + 1} of {FOLDS + 1}")
    encoder = np.zeros((2 * BUCKETS, CLASS_COUNT))
    encoder[used] = fit_encoder(grams, counts, _ENCODER_RIDGE)
    return encoder, said


def _counts(where: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how much each prompt's answers say for each class, shape (prompts, 5)."""
    counts = np.zeros((where.max() + 1, CLASS_COUNT))
    np.add.at(counts, (where, classes), 1)
    # A hundred answers to one prompt say less than one answer to each of a hundred.
    return np.asarray(counts / np.sqrt(counts.sum(axis=1, keepdims=True)))


def _grams(prompts: Seen, weights: NDArray[np.float64]) -> Sparse:
    words, runs = weights[:BUCKETS], weights[BUCKETS:]
    blocks = [weighed(prompts.words, words), weighed(prompts.runs, runs)]
    found = sparse.hstack(blocks, dtype=np.float32).tocsr()
    found.eliminate_zeros()
    return found


def _inputs(
    said: NDArray[np.float64], prompts: Seen, rows: Sequence[Row], edges: Edges
) -> NDArray[np.float64]:
    models = np.log1p(np.array([edges[row.model] for row in rows]))
    return np.concatenate((said, prompts.shallow, models), axis=1)


def _known(rows: Sequence[Row]) -> tuple[NDArray[np.float64], dict[str, Classes]]:
    """Return the lengths of all models' answers, and each model's classes."""
    sketches = {model: Sketch() for model in by_model(rows)}
    for row in rows:
        sketches[row.model].add(row.tokens)
    shares = [each.weights / each.weights.sum() for each in sketches.values()]
    prior = np.mean(shares, axis=0)
    classes = {model: Classes(prior) for model in sketches}
    for row in rows:
        classes[row.model].observe(row.tokens)
    return prior, classes

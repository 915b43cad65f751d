"""Training: the encoder first, then the head on out-of-fold outputs of the encoder.

mu-Serve (section 3.3) fine-tunes BERT with its classifier, then the classifier alone. Here the part
that is trained on the classes is linear and fitted first, and MiniLM is not trained. The head then
learns from encoders of folds that did not contain the prompt, as it will be in use.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from services.kit.errors import InvalidArgument
from services.predictor.core.estimate import CLASS_COUNT, CLASS_MIDDLES, CLASS_RANKS
from services.predictor.core.features import BUCKETS
from services.predictor.core.length_classes import LengthClasses
from services.predictor.core.length_histogram import LengthHistogram, kaplan_meier
from services.predictor.training.core.encoder import fit_encoder
from services.predictor.training.core.head import Head, fit_head
from services.predictor.training.core.matrix import Seen, Sparse, directions, rarity, seen, weighed
from services.predictor.training.core.rows import Row, by_model

FOLDS = 4
STEPS = FOLDS + 4
"""Number of steps that training reports."""

MIN_PROMPTS = 50
_ENCODER_RIDGE = 0.5

_HEAD_RIDGE_PER_PROMPT = 20.0
"""Answers to one prompt are alike, so the penalty falls with prompts, not answers."""

_DIRECTIONS = 16
"""Principal components of the prompts' vectors that the head gets."""

Progress = Callable[[str], None]
Edges = dict[str, tuple[float, ...]]
Array = NDArray[np.float64]

Embed = Callable[[str], NDArray[np.float32]]
"""Embeds a prompt, shape (size,)."""


@dataclass(frozen=True, slots=True)
class Body:
    """Computes the head's inputs from a prompt and a served model.

    Attributes:
        rarity: Weight of each n-gram, words' columns first, shape (2 * BUCKETS,); 0: not used.
        encoder: Weight of each n-gram for each class, shape (2 * BUCKETS, 5).
        directions: Principal components of the vectors, shape (size, `_DIRECTIONS`).
        edges_tokens: Percentiles 25, 50, 75 and 99 of each served model's answers, tokens.
    """

    rarity: Array
    encoder: Array
    directions: Array
    edges_tokens: Edges

    def inputs(self, rows: Sequence[Row], embed: Embed) -> Array:
        """Return the head's inputs for models in the training data, shape (n, inputs)."""
        prompts = [row.prompt for row in rows]
        read = seen(prompts)
        said = _grams(read, self.rarity) @ self.encoder
        about = _vectors(prompts, embed) @ self.directions
        return _inputs(said, read.shallow, about, rows, self.edges_tokens)


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained predictor.

    Attributes:
        body: Computes the head's inputs.
        head: The head.
        prior: Weights of lengths by bucket, every model weighing the same.
        classes: Length classes of each served model, with every length observed.
    """

    body: Body
    head: Head
    prior: Array
    classes: dict[str, LengthClasses]

    def probabilities(self, rows: Sequence[Row], embed: Embed) -> Array:
        """Return class probabilities for models in the training data, shape (n, 5)."""
        return self.head.probabilities(self.body.inputs(rows, embed))


def fit(
    rows: Sequence[Row], embed: Embed, *, seed: int = 0, progress: Progress = lambda _: None
) -> Trained:
    """Train a predictor.

    Args:
        rows: Answers of one or several served models.
        embed: Embeds prompts, as in use.
        seed: Seed of folds and initial weights: equal rows and seeds give equal predictors on the
            same kind of machine.
        progress: Called with the name of each of `STEPS` steps before it.

    Raises:
        InvalidArgument: Too few prompts.
    """
    with threadpool_limits(limits=1):  # sums come out the same only in the same order
        body, inputs = fit_body(rows, embed, seed=seed, progress=progress)
        progress("training the head")
        classes, ridge = true_classes(rows, body.edges_tokens), head_ridge(rows)
        return Trained(body, fit_head(inputs, classes, ridge, seed), *known_lengths(rows))


def fit_body(
    rows: Sequence[Row], embed: Embed, *, seed: int = 0, progress: Progress = lambda _: None
) -> tuple[Body, Array]:
    """Train everything but the head.

    Returns:
        The body, and the head's inputs for `rows` from encoders of other folds.

    Raises:
        InvalidArgument: Too few prompts.
    """
    progress("reading prompts")
    prompts = list(dict.fromkeys(row.prompt for row in rows))
    if len(prompts) < MIN_PROMPTS:
        raise InvalidArgument(
            f"at least {MIN_PROMPTS} prompts are needed, got {len(prompts)}", field="data"
        )
    positions = {prompt: index for index, prompt in enumerate(prompts)}
    where = np.array([positions[row.prompt] for row in rows])
    edges = edges_tokens(rows)
    read = seen(prompts)
    weights = np.concatenate((rarity(read.words), rarity(read.runs)))
    counts = _counts(where, true_classes(rows, edges))
    encoder, said = _encoded(_grams(read, weights), counts, seed, progress)
    progress("embedding prompts")
    vectors = _vectors(prompts, embed)
    chosen = directions(vectors, _DIRECTIONS)
    about = (vectors @ chosen)[where]
    inputs = _inputs(said[where], read.shallow[where], about, rows, edges)
    return Body(weights, encoder, chosen, edges), inputs


def head_ridge(rows: Sequence[Row]) -> float:
    """Return the penalty on the head's squared weights."""
    return _HEAD_RIDGE_PER_PROMPT / len({row.prompt for row in rows})


def edges_tokens(rows: Sequence[Row]) -> Edges:
    """Return each served model's percentiles 25, 50, 75 and 99, tokens; see `kaplan_meier`."""
    return {model: _edges_of(own) for model, own in by_model(rows).items()}


def true_classes(rows: Sequence[Row], edges: Edges) -> NDArray[np.int64]:
    """Return each answer's class, 0..4, shape (n,); an edge belongs to the class below.

    Of a truncated answer, the class of the median of the lengths beyond it: by rank, halfway
    between the middle of its own class and the longest.
    """
    reached = np.array([np.searchsorted(edges[row.model], row.tokens) for row in rows], np.int64)
    beyond = np.searchsorted(CLASS_RANKS, (1 + np.array(CLASS_MIDDLES)) / 2)
    return np.where([row.truncated for row in rows], beyond[reached], reached)


def _encoded(grams: Sparse, counts: Array, seed: int, progress: Progress) -> tuple[Array, Array]:
    """Return the encoder, and its out-of-fold outputs for the prompts."""
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


def _counts(where: NDArray[np.int64], classes: NDArray[np.int64]) -> Array:
    """Return how much each prompt's answers say for each class, shape (prompts, 5)."""
    counts = np.zeros((where.max() + 1, CLASS_COUNT))
    np.add.at(counts, (where, classes), 1)
    # A hundred answers to one prompt say less than one answer to each of a hundred.
    return np.asarray(counts / np.sqrt(counts.sum(axis=1, keepdims=True)))


def _grams(prompts: Seen, weights: Array) -> Sparse:
    words, runs = weights[:BUCKETS], weights[BUCKETS:]
    blocks = [weighed(prompts.words, words), weighed(prompts.runs, runs)]
    found = sparse.hstack(blocks, dtype=np.float32).tocsr()
    found.eliminate_zeros()
    return found


def _inputs(said: Array, shallow: Array, about: Array, rows: Sequence[Row], edges: Edges) -> Array:
    models = np.log1p(np.array([edges[row.model] for row in rows]))
    return np.concatenate((said, shallow, about, models), axis=1)


def _vectors(prompts: Sequence[str], embed: Embed) -> Array:
    """Return each prompt's vector, shape (n, size)."""
    made = {prompt: embed(prompt) for prompt in dict.fromkeys(prompts)}
    return np.array([made[prompt] for prompt in prompts], np.float64)


def _edges_of(rows: Sequence[Row]) -> tuple[float, ...]:
    tokens, where = np.unique([row.tokens for row in rows], return_inverse=True)
    cut = np.array([row.truncated for row in rows])
    counts = [np.bincount(where, each, len(tokens)).astype(np.float64) for each in (~cut, cut)]
    lengths = kaplan_meier(*counts)
    return tuple(np.quantile(tokens, CLASS_RANKS, weights=lengths, method="inverted_cdf").tolist())


def known_lengths(rows: Sequence[Row]) -> tuple[Array, dict[str, LengthClasses]]:
    """Return the prior, and each model's length classes; the order of the rows says nothing."""
    histograms = {
        model: LengthHistogram.of([row.tokens for row in own], [row.truncated for row in own])
        for model, own in by_model(rows).items()
    }
    prior = np.mean([kaplan_meier(*each.weights) for each in histograms.values()], axis=0)
    whole = Counter(row.model for row in rows if not row.truncated)
    classes = {
        model: LengthClasses(prior, lengths, whole[model]) for model, lengths in histograms.items()
    }
    return prior, classes

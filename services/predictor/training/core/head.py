"""The head: from the encoder's output, plain counts and the served model to five classes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from services.predictor.core.estimate import CLASS_COUNT

CLIP = 5.0
"""Inputs are clipped to so many standard deviations from their mean."""

_HIDDEN, _NETWORKS, _STEPS = 16, 4, 150

Array = NDArray[np.float64]
Loss = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True, slots=True)
class Head:
    """Several small networks side by side, whose scores are averaged: one hidden layer in all.

    Scores are `tanh(x @ inner + inner_offsets) @ outer + x @ direct + offsets`, where x are the
    inputs less `means`, times `scales`, clipped.

    Attributes:
        means: Mean of each input, shape (inputs,).
        scales: Reciprocal standard deviation of each input, shape (inputs,).
        inner: Weights of the hidden layer, shape (inputs, hidden).
        inner_offsets: Biases of the hidden layer, shape (hidden,).
        outer: Weights from the hidden layer to the scores, shape (hidden, 5).
        direct: Weights from the inputs to the scores, shape (inputs, 5).
        offsets: Biases of the scores, shape (5,).
    """

    means: Array
    scales: Array
    inner: Array
    inner_offsets: Array
    outer: Array
    direct: Array
    offsets: Array

    def probabilities(self, inputs: Array) -> Array:
        """Return the probability of each class, shape (n, 5)."""
        return np.asarray(softmax(self.scores(inputs), axis=1))

    def scores(self, inputs: Array) -> Array:
        """Return the scores, shape (n, outputs)."""
        x = np.clip((inputs - self.means) * self.scales, -CLIP, CLIP)
        hidden = np.tanh(x @ self.inner + self.inner_offsets)
        return np.asarray(hidden @ self.outer + x @ self.direct + self.offsets)


def fit_head(inputs: Array, classes: NDArray[np.int64], ridge: float, seed: int) -> Head:
    """Return the fitted head.

    Args:
        inputs: Inputs, shape (n, inputs).
        classes: True classes, 0..4, shape (n,).
        ridge: Strength of the penalty on squared weights.
        seed: Seed of the initial weights.
    """
    truth = np.eye(CLASS_COUNT)[classes]

    def loss(scores: Array) -> tuple[float, Array]:
        logs = log_softmax(scores, axis=1)
        return -float((truth * logs).sum()), np.exp(logs) - truth

    return fit_networks(inputs, np.log(truth.mean(axis=0) + 1e-3), loss, ridge, seed)


def fit_networks(inputs: Array, start: Array, loss: Loss, ridge: float, seed: int) -> Head:
    """Return the networks that minimise a loss.

    Args:
        inputs: Inputs, shape (n, inputs).
        start: Initial scores, shape (outputs,).
        loss: Returns the loss of scores, shape (n, outputs), summed over n, and its gradient.
        ridge: Strength of the penalty on squared weights, beside the mean loss.
        seed: Seed of the initial weights.
    """
    means, scales = inputs.mean(axis=0), 1 / (inputs.std(axis=0) + 1e-6)
    x = np.clip((inputs - means) * scales, -CLIP, CLIP)
    random = np.random.default_rng(seed)
    found = [_fit(x, start, loss, ridge, random) for _ in range(_NETWORKS)]
    inner, inner_offsets, outer, direct, offsets = zip(*found, strict=True)
    return Head(
        means,
        scales,
        np.concatenate(inner, axis=1),
        np.concatenate(inner_offsets),
        np.concatenate(outer) / _NETWORKS,
        np.mean(direct, axis=0),
        np.mean(offsets, axis=0),
    )


def _fit(
    x: Array, start: Array, loss: Loss, ridge: float, random: np.random.Generator
) -> tuple[Array, ...]:
    (count, inputs), outputs = x.shape, len(start)
    shapes = [(inputs, _HIDDEN), (_HIDDEN,), (_HIDDEN, outputs), (inputs, outputs), (outputs,)]
    first = [
        random.normal(0, inputs**-0.5, shapes[0]),
        np.zeros(shapes[1]),
        random.normal(0, 0.1, shapes[2]),
        np.zeros(shapes[3]),
        start,
    ]

    def penalised(flat: Array) -> tuple[float, Array]:
        inner, inner_offsets, outer, direct, offsets = _split(flat, shapes)
        hidden = np.tanh(x @ inner + inner_offsets)
        total, gradient = loss(hidden @ outer + x @ direct + offsets)
        error = gradient / count
        inner_error = (error @ outer.T) * (1 - hidden * hidden)
        gradients = (
            x.T @ inner_error + ridge * inner,
            inner_error.sum(axis=0),
            hidden.T @ error + ridge * outer,
            x.T @ error + ridge * direct,
            error.sum(axis=0),
        )
        squares = sum(float((each * each).sum()) for each in (inner, outer, direct))
        flat_gradient = np.concatenate([each.ravel() for each in gradients])
        return total / count + ridge / 2 * squares, flat_gradient

    begin = np.concatenate([each.ravel() for each in first])
    found = minimize(penalised, begin, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return tuple(_split(found.x, shapes))


def _split(flat: Array, shapes: list[tuple[int, ...]]) -> Iterator[Array]:
    begin = 0
    for shape in shapes:
        end = begin + int(np.prod(shape))
        yield flat[begin:end].reshape(shape)
        begin = end

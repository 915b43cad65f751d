"""The head: from what the encoder says, plain counts and the served model to five classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from services.predictor.estimate import CLASS_COUNT

CLIP = 5.0
"""Inputs further from their mean than so many standard deviations count as that far."""

_HIDDEN, _NETWORKS, _STEPS = 16, 4, 150

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Head:
    """Several small networks side by side, whose scores are averaged: one hidden layer in all.

    Scores are `tanh(x @ inner + inner_offsets) @ outer + x @ direct + offsets`, where x are the
    inputs less `means`, times `scales`, clipped.

    Attributes:
        means: Of each input, shape (inputs,).
        scales: One over each input's standard deviation, shape (inputs,).
        inner: Shape (inputs, hidden).
        inner_offsets: Shape (hidden,).
        outer: Shape (hidden, 5).
        direct: Shape (inputs, 5).
        offsets: Shape (5,).
    """

    means: Array
    scales: Array
    inner: Array
    inner_offsets: Array
    outer: Array
    direct: Array
    offsets: Array

    def probabilities(self, inputs: Array) -> Array:
        """Return how likely each class is, shape (n, 5)."""
        x = np.clip((inputs - self.means) * self.scales, -CLIP, CLIP)
        hidden = np.tanh(x @ self.inner + self.inner_offsets)
        return np.asarray(softmax(hidden @ self.outer + x @ self.direct + self.offsets, axis=1))


def fit_head(inputs: Array, classes: NDArray[np.int64], ridge: float, seed: int) -> Head:
    """Return the head that tells classes best.

    Args:
        inputs: Shape (n, inputs).
        classes: True classes, 0..4, shape (n,).
        ridge: Strength of the penalty on squared weights.
        seed: Draws the first weights.
    """
    means, scales = inputs.mean(axis=0), 1 / (inputs.std(axis=0) + 1e-6)
    x = np.clip((inputs - means) * scales, -CLIP, CLIP)
    truth = np.eye(CLASS_COUNT)[classes]
    random = np.random.default_rng(seed)
    found = [_fit(x, truth, ridge, random) for _ in range(_NETWORKS)]
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


def _fit(x: Array, truth: Array, ridge: float, random: np.random.Generator) -> tuple[Array, ...]:
    count, inputs = x.shape
    shapes = [(inputs, _HIDDEN), (_HIDDEN,), (_HIDDEN, CLASS_COUNT), (inputs, CLASS_COUNT)]
    shapes.append((CLASS_COUNT,))
    first = [
        random.normal(0, inputs**-0.5, shapes[0]),
        np.zeros(shapes[1]),
        random.normal(0, 0.1, shapes[2]),
        np.zeros(shapes[3]),
        np.log(truth.mean(axis=0) + 1e-3),
    ]

    def loss(flat: Array) -> tuple[float, Array]:
        inner, inner_offsets, outer, direct, offsets = _split(flat, shapes)
        hidden = np.tanh(x @ inner + inner_offsets)
        logs = log_softmax(hidden @ outer + x @ direct + offsets, axis=1)
        error = (np.exp(logs) - truth) / count
        inner_error = (error @ outer.T) * (1 - hidden * hidden)
        penalised = (inner, outer, direct)
        gradients = (
            x.T @ inner_error + ridge * inner,
            inner_error.sum(axis=0),
            hidden.T @ error + ridge * outer,
            x.T @ error + ridge * direct,
            error.sum(axis=0),
        )
        total = -float((truth * logs).sum()) / count
        total += ridge / 2 * sum(float((each * each).sum()) for each in penalised)
        return total, np.concatenate([each.ravel() for each in gradients])

    start = np.concatenate([each.ravel() for each in first])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return tuple(_split(found.x, shapes))


def _split(flat: Array, shapes: list[tuple[int, ...]]) -> Iterator[Array]:
    begin = 0
    for shape in shapes:
        end = begin + int(np.prod(shape))
        yield flat[begin:end].reshape(shape)
        begin = end

"""The aims that mu-Serve's table 2 compares: the same network and inputs, trained otherwise.

Ordinal: one number, near the class; rounded. Regression: one number, near the logarithm of the
length; cut at the class edges. Classification is the predictor's own.

Source: Qiu et al., "mu-Serve", ATC 2024, sections 3.3 and 4.3.
"""

from collections.abc import Callable, Sequence

import numpy as np

from services.predictor.core.estimate import CLASS_COUNT
from services.predictor.training.core.fit import Body, Embed, head_ridge, true_classes
from services.predictor.training.core.head import Array, Head, Loss, fit_head, fit_networks
from services.predictor.training.core.metrics import Measures, measure
from services.predictor.training.core.rows import Row

OURS = "classification: the predictor"
_BEND = 0.05
"""Where the absolute error begins to be one, for the gradient's sake."""


def squared(target: Array) -> Loss:
    """Return the loss of half of squared errors."""

    def loss(scores: Array) -> tuple[float, Array]:
        error = scores - target[:, None]
        return float((error**2).sum()) / 2, error

    return loss


def absolute(target: Array) -> Loss:
    """Return the loss of absolute errors, rounded at 0."""

    def loss(scores: Array) -> tuple[float, Array]:
        error = scores - target[:, None]
        size = np.sqrt(error**2 + _BEND**2)
        return float(size.sum()), error / size

    return loss


def objectives(
    body: Body, inputs: Array, trained: Sequence[Row], tested: Sequence[Row], embed: Embed
) -> dict[str, Measures]:
    """Return how good each aim is, for one served model.

    Args:
        body: The network below the heads, which makes their inputs.
        inputs: Of `trained`, from encoders that had not seen their prompts.
        trained: Answers to train with, of any models.
        tested: Answers of one model to test with.
        embed: Makes vectors of prompts.
    """
    classes, true = (true_classes(rows, body.edges_tokens) for rows in (trained, tested))
    lengths, tokens = (np.array([row.tokens for row in rows], float) for rows in (trained, tested))
    limits = np.log1p(body.edges_tokens[tested[0].model])
    tested_inputs, ridge = body.inputs(tested, embed), head_ridge(trained)
    found: dict[str, Measures] = {}
    for name, loss in {"MSE": squared, "L1": absolute}.items():
        ordinal = _scores(tested_inputs, inputs, classes.astype(float), loss, ridge)
        called = np.rint(ordinal).clip(0, CLASS_COUNT - 1).astype(np.int64)
        found[f"ordinal, {name}"] = measure(true, tokens, called, ordinal)
        logs = _scores(tested_inputs, inputs, np.log1p(lengths), loss, ridge)
        cut = np.searchsorted(limits, logs)
        found[f"regression, {name}"] = measure(true, tokens, cut, logs)
    likely = fit_head(inputs, classes, ridge, seed=0).probabilities(tested_inputs)
    mean = likely @ np.arange(CLASS_COUNT)
    found[OURS] = measure(true, tokens, likely.argmax(axis=1), mean)
    return dict(sorted(found.items()))


def _scores(
    tested_inputs: Array, inputs: Array, target: Array, loss: Callable[[Array], Loss], ridge: float
) -> Array:
    start = np.array([target.mean()])
    head: Head = fit_networks(inputs, start, loss(target), ridge, seed=0)
    scores: Array = head.scores(tested_inputs)[:, 0]
    return scores

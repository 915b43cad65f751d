"""The encoder: softmax regression of the class counts on n-grams."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from services.predictor.training.core.matrix import Sparse

_STEPS = 30


def fit_encoder(grams: Sparse, counts: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """Return the fitted weights, shape (columns, classes).

    Args:
        grams: Weighed n-grams, shape (prompts, columns).
        counts: How often each prompt's answers were of each class, shape (prompts, classes).
        ridge: Strength of the penalty on squared weights.
    """
    shape = (grams.shape[1], counts.shape[1])
    answers = counts.sum(axis=1, keepdims=True)
    offsets = base_rates(counts)
    transposed = grams.T.tocsr()

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(shape)
        logs = log_softmax(grams @ weights.astype(np.float32) + offsets, axis=1)
        error = (np.exp(logs) * answers - counts).astype(np.float32)
        gradient = transposed @ error + ridge * weights
        total = -float((counts * logs).sum()) + ridge / 2 * float(flat @ flat)
        return total / answers.sum(), gradient.ravel() / answers.sum()

    start = np.zeros(shape).ravel()
    options = {"maxiter": _STEPS, "maxcor": 6}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x).reshape(shape)


def base_rates(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of each class's share, shape (classes,)."""
    return np.asarray(np.log((counts.sum(axis=0) + 1) / (counts.sum() + counts.shape[1])))

"""Length classes of one served model, with the calibration of the proxy model for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidArgument
from services.predictor.core.estimate import CLASS_COUNT, CLASS_RANKS, Estimate, EstimateSource
from services.predictor.core.length_histogram import (
    TOKENS,
    VALUES_TOKENS,
    LengthHistogram,
    parts,
    quantile_tokens,
)

SHARES: Final = np.diff(np.array((0.0, *CLASS_RANKS, 1.0)))
"""Share of the answers in each class, by definition."""

_PRIOR_ANSWERS: Final = 20.0
"""Weight of the prior in answers; it falls as answers are observed."""

_RATE, _SETTLING_ANSWERS = 0.2, 20.0
"""Learning rate of the calibration, and the answers after which it falls."""

_MIN_RANKED: Final = 50
"""Number of requests before ranks are given."""

_MIN_PROBABILITY: Final = 1e-4
_FORMAT: Final = 1


class LengthClasses:
    """Edges, calibration and lengths of one served model's answers, learned online.

    The proxy model's class probabilities are calibrated for each served model:
    `log p'(k) = slope * log p(k) + shift(k)`, normalised, fitted by gradient steps on the log-loss
    (Guo et al., ICML 2017, "vector scaling" with one slope). The slope of a proxy that has no
    information about this model falls to 0: the prior.

    Args:
        prior: Lengths of other models' answers by bucket, shape (TOKENS.count,), not all 0.
    """

    def __init__(self, prior: NDArray[np.float64]) -> None:
        self._prior = prior / prior.sum()
        self._sketch = LengthHistogram()
        self._expected, self._ranked = LengthHistogram(), 0
        self._answers = 0
        self._slope, self._shifts = 1.0, np.zeros(CLASS_COUNT)
        self._cut()

    @property
    def answers(self) -> int:
        """Number of lengths observed."""
        return self._answers

    @property
    def edges_tokens(self) -> tuple[float, ...]:
        """Upper edges of the classes 0..3, ascending: percentiles 25, 50, 75, 99, tokens."""
        return self._edges_tokens

    def class_of(self, tokens: float) -> int:
        """Return a length's class, 0..4; an edge belongs to the class below."""
        return bisect_left(self._edges_tokens, VALUES_TOKENS[TOKENS.index(tokens)])

    def estimate(self, probabilities: Sequence[float] = ()) -> Estimate:
        """Return the expected length.

        Args:
            probabilities: Class probabilities of the proxy model, shape (5,); empty: the prior.
        """
        said = tuple(probabilities)
        source: EstimateSource = "model" if said else "prior"
        likely = self.calibrated(said) if said else SHARES
        lengths = likely @ self._parts
        return Estimate(
            expected_tokens=float(lengths @ VALUES_TOKENS),
            class_=int(np.argmax(likely)) if said else self.class_of(self._edges_tokens[1]),
            low_tokens=quantile_tokens(lengths, 0.1),
            high_tokens=quantile_tokens(lengths, 0.9),
            source=source,
            probabilities=said,
        )

    def rank(self, expected_tokens: float) -> float | None:
        """Return the share of recent requests of which shorter answers were expected, 0..1.

        Counts the request. None: too few were counted so far.
        """
        self._expected.add(expected_tokens)
        self._ranked += 1
        return self._expected.rank(expected_tokens) if self._ranked >= _MIN_RANKED else None

    def calibrated(self, probabilities: Sequence[float]) -> NDArray[np.float64]:
        """Return this model's class probabilities, shape (5,), sum 1."""
        scores = self._slope * _logs(probabilities) + self._shifts
        likely = np.exp(scores - scores.max())
        return np.asarray(likely / likely.sum())

    def observe(self, tokens: float, probabilities: Sequence[float] = ()) -> None:
        """Learn an answer's true length.

        Args:
            tokens: True length, tokens.
            probabilities: Class probabilities of the proxy model, where it ran.
        """
        if len(probabilities) == CLASS_COUNT:
            self._calibrate(self.class_of(tokens), probabilities)
        self._sketch.add(tokens)
        self._answers += 1
        self._cut()

    def to_bytes(self) -> bytes:
        """Return what was learned, for `from_bytes`."""
        head = np.array([_FORMAT, self._answers, self._slope, *self._shifts], "<f4")
        return b"".join(each.astype("<f4").tobytes() for each in (head, self._sketch.weights))

    @classmethod
    def from_bytes(cls, saved: bytes, prior: NDArray[np.float64]) -> Self:
        """Return the classes that `to_bytes` saved.

        Raises:
            InvalidArgument: `saved` is something else.
        """
        head = 3 + CLASS_COUNT
        if len(saved) != 4 * (head + TOKENS.count):
            raise InvalidArgument(f"classes: {4 * (head + TOKENS.count)} bytes, got {len(saved)}")
        values = np.frombuffer(saved, "<f4").astype(np.float64)
        if values[0] != _FORMAT or not np.isfinite(values).all() or (values[head:] < 0).any():
            raise InvalidArgument("classes: not saved by this version")
        classes = cls(prior)
        classes._answers, classes._slope = int(values[1]), max(float(values[2]), 0.0)
        classes._shifts, classes._sketch = values[3:head], LengthHistogram(values[head:])
        classes._cut()
        return classes

    def _calibrate(self, true_class: int, probabilities: Sequence[float]) -> None:
        error = self.calibrated(probabilities)
        error[true_class] -= 1
        rate = _RATE / (1 + self._answers / _SETTLING_ANSWERS) ** 0.5
        slope = self._slope - rate / CLASS_COUNT * float(error @ _logs(probabilities))
        self._slope = min(max(slope, 0.0), 5.0)
        self._shifts = self._shifts - rate * error

    def _cut(self) -> None:
        """Recompute the edges; readers in other threads see either the old ones or the new."""
        prior_answers = _PRIOR_ANSWERS**2 / (_PRIOR_ANSWERS + self._answers)
        weights = self._sketch.weights + prior_answers * self._prior
        self._parts = parts(weights, CLASS_RANKS)
        self._edges_tokens = tuple(quantile_tokens(weights, rank) for rank in CLASS_RANKS)


def _logs(probabilities: Sequence[float]) -> NDArray[np.float64]:
    return np.log(np.clip(np.asarray(probabilities, np.float64), _MIN_PROBABILITY, 1.0))

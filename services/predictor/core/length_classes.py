"""Length classes of one served model, with the calibration of the proxy model for it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidArgument
from services.predictor.core.estimate import CLASS_COUNT, CLASS_RANKS, Estimate, EstimateSource
from services.predictor.core.length_histogram import (
    TOKENS,
    VALUES_TOKENS,
    LengthHistogram,
    kaplan_meier,
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

_EDGES_MAY_LAG: Final = 0.01
"""Share of the answers that calibration may wait for before it computes the edges again."""

_MIN_PROBABILITY: Final = 1e-4
_FORMAT: Final = 2


class LengthClasses:
    """Edges, calibration and lengths of one served model's answers, learned online.

    The proxy model's class probabilities are calibrated for each served model:
    `log p'(k) = slope * log p(k) + shift(k)`, normalised, fitted by gradient steps on the log-loss
    (Guo et al., ICML 2017, "vector scaling" with one slope). The slope of a proxy that has no
    information about this model falls to 0: the prior.

    A truncated answer is a censored observation: of the classes, those are as likely as before that
    reach so far, and the lengths are those of `kaplan_meier`.

    Args:
        prior: Lengths of other models' answers by bucket, shape (TOKENS.count,), not all 0.
        lengths: Lengths of this model's own answers, where they are known from a log.
        answers: Whole answers among them.
    """

    def __init__(
        self,
        prior: NDArray[np.float64],
        lengths: LengthHistogram | None = None,
        answers: int = 0,
    ) -> None:
        self._prior = prior / prior.sum()
        self._lengths = lengths or LengthHistogram()
        self._expected, self._ranked = LengthHistogram(), 0
        self._answers = answers
        self._slope, self._shifts = 1.0, np.zeros(CLASS_COUNT)
        self._uncut = 0  # lengths observed since the edges were computed
        self._cut()

    @property
    def answers(self) -> int:
        """Number of whole answers observed."""
        return self._answers

    @property
    def edges_tokens(self) -> tuple[float, ...]:
        """Upper edges of the classes 0..3, ascending: percentiles 25, 50, 75, 99, tokens."""
        return self._up_to_date().edges_tokens

    def class_of(self, tokens: float) -> int:
        """Return a length's class, 0..4; an edge belongs to the class below."""
        return _class_of(tokens, self._up_to_date())

    def estimate(self, probabilities: Sequence[float] = (), max_tokens: float = inf) -> Estimate:
        """Return the expected length.

        Args:
            probabilities: Class probabilities of the proxy model, shape (5,); empty: the prior.
            max_tokens: Length at which the answer will be cut off, tokens, >= 1.
        """
        said = tuple(probabilities)
        source: EstimateSource = "model" if said else "prior"
        likely = self.calibrated(said) if said else SHARES
        cuts = self._up_to_date()
        lengths = likely @ cuts.parts
        class_ = int(np.argmax(likely)) if said else _class_of(cuts.edges_tokens[1], cuts)
        return Estimate(
            expected_tokens=float(lengths @ np.minimum(VALUES_TOKENS, max_tokens)),
            class_=min(class_, _class_of(max_tokens, cuts)),
            low_tokens=min(quantile_tokens(lengths, 0.1), max_tokens),
            high_tokens=min(quantile_tokens(lengths, 0.9), max_tokens),
            source=source,
            probabilities=said,
        )

    def shortened(self, estimate: Estimate, max_tokens: float) -> Estimate:
        """Return an estimate of the same answer, cut off at `max_tokens`. Takes microseconds."""
        if estimate.source != "cache":
            return self.estimate(estimate.probabilities, max_tokens)
        return replace(
            estimate,
            expected_tokens=min(estimate.expected_tokens, max_tokens),
            class_=min(estimate.class_, self.class_of(max_tokens)),
            low_tokens=min(estimate.low_tokens, max_tokens),
            high_tokens=min(estimate.high_tokens, max_tokens),
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

    def observe(
        self, tokens: float, probabilities: Sequence[float] = (), *, truncated: bool = False
    ) -> None:
        """Learn an answer's true length.

        Args:
            tokens: Length, tokens.
            probabilities: Class probabilities of the proxy model, where it ran.
            truncated: Whether the answer was cut off there.
        """
        if len(probabilities) == CLASS_COUNT:
            self._calibrate(tokens, probabilities, truncated=truncated)
        self._lengths.add(tokens, truncated=truncated)
        self._answers += not truncated
        self._uncut += 1

    def to_bytes(self) -> bytes:
        """Return the learned state, for `from_bytes`."""
        head = np.array([_FORMAT, self._answers, self._slope, *self._shifts], "<f4")
        return b"".join(each.astype("<f4").tobytes() for each in (head, self._lengths.weights))

    @classmethod
    def from_bytes(cls, saved: bytes, prior: NDArray[np.float64]) -> Self:
        """Return the classes that `to_bytes` saved; version 1 knew no truncated answers.

        Raises:
            InvalidArgument: `saved` is something else.
        """
        head, rows = 3 + CLASS_COUNT, (1, 2)
        sizes = [4 * (head + each * TOKENS.count) for each in rows]
        if len(saved) not in sizes:
            raise InvalidArgument(f"classes: {sizes[-1]} bytes, got {len(saved)}")
        values = np.frombuffer(saved, "<f4").astype(np.float64)
        version = rows[sizes.index(len(saved))]
        if values[0] != version or not np.isfinite(values).all() or (values[head:] < 0).any():
            raise InvalidArgument("classes: not saved by this version")
        weights = np.zeros((2, TOKENS.count))
        weights[:version] = values[head:].reshape(version, TOKENS.count)
        classes = cls(prior, LengthHistogram(weights), int(values[1]))
        classes._slope, classes._shifts = max(float(values[2]), 0.0), values[3:head]
        return classes

    def _calibrate(self, tokens: float, probabilities: Sequence[float], *, truncated: bool) -> None:
        likely = self.calibrated(probabilities)
        if self._uncut > self._answers * _EDGES_MAY_LAG:
            self._cut()
        cuts = self._cuts
        if truncated:  # the expectation of the class, given that it reaches so far
            true = likely * cuts.parts[:, TOKENS.index(tokens) :].sum(axis=1)
            if not true.any():
                return
            true /= true.sum()
        else:
            true = np.eye(CLASS_COUNT)[_class_of(tokens, cuts)]
        error = likely - true
        rate = _RATE / (1 + self._answers / _SETTLING_ANSWERS) ** 0.5
        slope = self._slope - rate / CLASS_COUNT * float(error @ _logs(probabilities))
        self._slope = min(max(slope, 0.0), 5.0)
        self._shifts = self._shifts - rate * error

    def _up_to_date(self) -> "_Cuts":
        if self._uncut:
            self._cut()
        return self._cuts

    def _cut(self) -> None:
        """Recompute the edges; readers in other threads see either the old ones or the new."""
        self._uncut = 0
        prior_answers = _PRIOR_ANSWERS**2 / (_PRIOR_ANSWERS + self._answers)
        whole, truncated = self._lengths.weights
        lengths = kaplan_meier(whole + prior_answers * self._prior, truncated)
        edges_tokens = tuple(quantile_tokens(lengths, rank) for rank in CLASS_RANKS)
        self._cuts = _Cuts(parts(lengths, CLASS_RANKS), edges_tokens)


class _Cuts(NamedTuple):
    """Lengths by class, shape (5, TOKENS.count), and the edges between the classes, tokens."""

    parts: NDArray[np.float64]
    edges_tokens: tuple[float, ...]


def _class_of(tokens: float, cuts: _Cuts) -> int:
    return bisect_left(cuts.edges_tokens, VALUES_TOKENS[TOKENS.index(tokens)])


def _logs(probabilities: Sequence[float]) -> NDArray[np.float64]:
    return np.log(np.clip(np.asarray(probabilities, np.float64), _MIN_PROBABILITY, 1.0))

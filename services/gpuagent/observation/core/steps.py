"""A server's steps as its metrics show them: sums that add up, and what fits them. Pure.

A step gives each answer in progress a token (a language model), or is one batch (Triton):

    time   = fixed_s + item_s * items + prompt_token_s * tokens of prompts
    energy = fixed_j + item_j * items + prompt_token_j * tokens of prompts

Both are linear in what a window of time shows, so that least squares need only sums, which are as
large after a month as after a minute. Coefficients are not negative. What the load did not vary is
left as a prior has it, as far as the prior fits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

COLUMNS: Final = 3
_ENTRIES: Final = COLUMNS * COLUMNS + COLUMNS + 2
_PRIOR_WINDOWS: Final = 2.0
"""Windows as many as which the prior counts."""

MIN_WINDOWS: Final = 12
"""Windows from which on a fit is one: two minutes with requests."""

MAX_STEP_S: Final = 600.0
MAX_ITEMS: Final = 1e5
MAX_PROMPT_TOKENS: Final = 1e6

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of one window of time, on average.

    Attributes:
        step_s: Time of a step, s.
        items: Answers in progress, or items of a batch.
        prompt_tokens: Tokens of prompts that a step took in.
        step_j: Active energy of a step, J; None: not known.
    """

    step_s: float
    items: float
    prompt_tokens: float = 0.0
    step_j: float | None = None

    @property
    def is_plausible(self) -> bool:
        """True if a server can have had such steps."""
        return (
            0 < self.step_s <= MAX_STEP_S
            and 0 < self.items <= MAX_ITEMS
            and 0 <= self.prompt_tokens <= MAX_PROMPT_TOKENS
            and (self.step_j is None or (math.isfinite(self.step_j) and self.step_j >= 0))
        )


@dataclass(slots=True)
class Sums:
    """Sums of a least-squares fit. Attributes: windows, of x x^T, of x y, of y^2, each flat."""

    windows: float = 0.0
    matrix: list[float] = field(default_factory=lambda: [0.0] * (COLUMNS * COLUMNS))
    right: list[float] = field(default_factory=lambda: [0.0] * COLUMNS)
    square: float = 0.0

    def add(self, row: Sequence[float], value: float) -> None:
        """Add one equation."""
        self.windows += 1
        for i, one in enumerate(row):
            self.right[i] += one * value
            for j, other in enumerate(row):
                self.matrix[i * COLUMNS + j] += one * other
        self.square += value * value

    @property
    def flat(self) -> list[float]:
        """All of it as numbers."""
        return [self.windows, *self.matrix, *self.right, self.square]

    @classmethod
    def of(cls, flat: Sequence[float]) -> "Sums":
        """Return the sums of `flat`.

        Raises:
            ValueError: They are not of this form.
        """
        if len(flat) != _ENTRIES or not all(map(math.isfinite, flat)):
            raise ValueError(f"must be {_ENTRIES} finite numbers")
        square = COLUMNS * COLUMNS
        return cls(flat[0], list(flat[1 : square + 1]), list(flat[square + 1 : -1]), flat[-1])


@dataclass(slots=True)
class StepSums:
    """Sums of a server's steps on one type of GPU. Attributes: times, energies."""

    times: Sums = field(default_factory=Sums)
    energies: Sums = field(default_factory=Sums)

    def add(self, seen: Window) -> None:
        """Add a window; one that no server can have had is left out."""
        if not seen.is_plausible:
            return
        row = (1.0, seen.items, seen.prompt_tokens)
        self.times.add(row, seen.step_s)
        if seen.step_j is not None:
            self.energies.add(row, seen.step_j)

    @property
    def flat(self) -> list[float]:
        """All of it as numbers."""
        return [*self.times.flat, *self.energies.flat]

    @classmethod
    def of(cls, flat: Sequence[float]) -> "StepSums":
        """Return the sums of `flat`.

        Raises:
            ValueError: They are not of this form.
        """
        return cls(Sums.of(flat[:_ENTRIES]), Sums.of(flat[_ENTRIES:]))

    def plus(self, other: "StepSums", sign: float = 1.0) -> "StepSums":
        """Return the sums of both; with a sign of -1 those that came since the other."""
        both = zip(self.flat, other.flat, strict=True)
        return StepSums.of([one + sign * more for one, more in both])


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of a step: fixed, of an item, of a token of a prompt.

    Attributes:
        fixed, item, prompt_token: The coefficients, s or J.
        error: Root of the mean square of what they leave, over that of the values.
    """

    fixed: float
    item: float
    prompt_token: float
    error: float


def fit(sums: Sums, prior: Sequence[float] | None = None) -> Fit | None:
    """Return the coefficients that fit best; None: too few windows.

    Args:
        sums: The equations.
        prior: Coefficients that are expected; None: none are.
    """
    if sums.windows < MIN_WINDOWS:
        return None
    matrix = np.array(sums.matrix).reshape(COLUMNS, COLUMNS)
    right = np.array(sums.right)
    scale = np.maximum(np.diag(matrix) / sums.windows, 1e-12)
    weight = _PRIOR_WINDOWS if prior is not None else 1e-6
    expected = np.zeros(COLUMNS) if prior is None else np.array(prior)
    found = _not_negative(matrix + weight * np.diag(scale), right + weight * scale * expected)
    left = sums.square - 2 * float(found @ right) + float(found @ matrix @ found)
    error = math.sqrt(max(left, 0.0) / sums.square) if sums.square > 0 else 0.0
    return Fit(float(found[0]), float(found[1]), float(found[2]), error)


def _not_negative(matrix: Vector, right: Vector) -> Vector:
    """Return x >= 0 that minimizes x^T A x / 2 - b^T x, by all sets of columns: there are seven."""
    best, least = np.zeros(COLUMNS), 0.0
    for size in range(1, COLUMNS + 1):
        for chosen in combinations(range(COLUMNS), size):
            part = np.ix_(chosen, chosen)
            solved = np.linalg.lstsq(matrix[part], right[list(chosen)], rcond=None)[0]
            if (solved < 0).any():
                continue
            value = float(solved @ matrix[part] @ solved / 2 - right[list(chosen)] @ solved)
            if value < least:
                least, best = value, np.zeros(COLUMNS)
                best[list(chosen)] = solved
    return best

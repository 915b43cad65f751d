"""What a program is made of, what to make small, and what became of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Terms = Mapping[int, float]
"""Coefficients by column."""

Numbers = NDArray[np.int32]
"""Numbers of columns or rows."""

Values = NDArray[np.float64]

ABSOLUTE_GAP = 1e-7
"""An answer this close to its bound counts as optimal."""

LENIENT = 2.0
"""How many times what it may miss the optimum by an answer may where nothing quick comes closer."""

ROUNDING = 1e-6
"""Share of a step that floating point may add to a bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Rows `low` <= sum of the row's terms <= `high` over columns in 0..`upper`.

    Attributes:
        low, high: By row.
        upper: By column.
        integer: Which columns are integers.
        starts, columns, values: The coefficients, row after row: where each row starts, and where
            the last ends; their columns; themselves.
    """

    low: Values
    high: Values
    upper: Values
    integer: NDArray[np.bool_]
    starts: Numbers
    columns: Numbers
    values: Values


@dataclass(frozen=True, slots=True)
class GoalOutcome:
    """What became of one goal.

    Attributes:
        value: What the answer reaches.
        distance: How far below the optimum can be at most, ties apart; 0 where proven optimal,
            infinite where nothing is known.
    """

    value: float
    distance: float


@dataclass(frozen=True, slots=True)
class Goal:
    """What to make small.

    Attributes:
        terms: A weighted sum of columns.
        tolerance: Share of its value by which an answer may miss the optimum.
        absolute: By how much it may miss it in any case.
        nodes: Nodes of the search tree after which the best answer does, proven or not; 0: none
            does before the proof.
        step: The sum counts things that weigh this much each; what it has beside breaks ties, and
            nothing is proven of it. 0: it counts nothing.
        ties: How much of a step the ties can weigh, per step.
        last_resort: What it may miss the optimum by, at least, where nothing quick comes closer.
    """

    terms: Terms
    tolerance: float = 0.0
    absolute: float = 0.0
    nodes: int = 0
    step: float = 0.0
    ties: float = 0.0
    last_resort: float = 0.0

    def allowed(self, value: float) -> float:
        """Return by how much an answer of this value may miss the optimum."""
        return max(self.absolute, self.tolerance * abs(value))

    def reached(self, outcome: GoalOutcome) -> bool:
        """Return whether an answer is so good that no other needs to be looked for."""
        return self.nodes > 0 or outcome.distance <= self.allowed(outcome.value)

    def met(self, outcome: GoalOutcome) -> bool:
        """Return whether an answer is good enough where nothing quick comes closer."""
        most = max(self.last_resort, LENIENT * self.allowed(outcome.value))
        return self.reached(outcome) or outcome.distance <= most

    def bound(self, bound: float) -> float:
        """Return the least value of the sum that is not below `bound`, ties apart."""
        if not self.step or not math.isfinite(bound):
            return bound
        return math.ceil(bound / self.step / (1.0 + self.ties) - ROUNDING) * self.step

    def counted(self, value: float) -> float:
        """Return what of a value is no tie."""
        return math.floor(value / self.step + ROUNDING) * self.step if self.step else value

    def outcome(self, value: float, bound: float) -> GoalOutcome:
        """Return the outcome of a value whose optimum is at least `bound`."""
        distance = self.counted(value) - self.bound(bound)
        return GoalOutcome(value, distance if distance > ABSOLUTE_GAP else 0.0)

    def value(self, values: Values) -> float:
        """Return the weighted sum."""
        return sum(weight * float(values[column]) for column, weight in self.terms.items())

    def costs(self, width: int) -> Values:
        """Return the weights of so many columns."""
        costs = np.zeros(width)
        costs[list(self.terms)] = list(self.terms.values())
        return costs


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer.

    Attributes:
        values: By column.
        outcomes: Of the goals in order; those that time did not reach have none.
    """

    values: Values
    outcomes: tuple[GoalOutcome, ...]

    def count(self, column: int) -> int:
        """Return the value of an integer column."""
        return round(float(self.values[column]))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The answer of a program whose columns may be fractions.

    Attributes:
        value: The goal's.
        values: By column.
        duals: By row.
        prices: Reduced costs by column.
    """

    value: float
    values: Values
    duals: Values
    prices: Values

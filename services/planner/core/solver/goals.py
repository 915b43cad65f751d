"""Programs, their goals, and the outcomes of goals."""

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
"""Distance from its bound within which an answer counts as optimal."""

LENIENT = 2.0
"""Factor on a goal's tolerance where no quick search does better."""

ROUNDING = 1e-6
"""Share of a step by which floating point may raise a bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Rows `low` <= sum of the row's terms <= `high` over columns in 0..`upper`.

    low, high: Bounds by row.
        upper: Upper bounds by column.
        upper: By column.
        integer: Which columns are integers.
        starts, columns, values: Coefficients, row after row: start of each row and end of the last
            one; their columns; their values.
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
    """Outcome of one goal.

    Attributes:
        value: Value of the answer.
        distance: Largest possible distance from the optimum, ties apart; 0 where proven optimal,
            infinite where nothing is proven.
    """

    value: float
    distance: float


@dataclass(frozen=True, slots=True)
class Goal:
    """A weighted sum of columns to minimise.

    Attributes:
        terms: Weights by column.
        tolerance: Share of its value by which an answer may miss the optimum.
        absolute: Amount by which it may miss the optimum in any case.
        nodes: Nodes of the search tree after which the best answer is accepted without proof; 0:
            the proof is required.
        step: Weight of one counted thing; the rest of the sum only breaks ties, and nothing is
            proven of it. 0: the sum counts nothing.
        ties: Largest weight of the ties, as a share of a step.
        last_resort: Distance from the optimum allowed at least where no quick search comes closer.
    """

    terms: Terms
    tolerance: float = 0.0
    absolute: float = 0.0
    nodes: int = 0
    step: float = 0.0
    ties: float = 0.0
    last_resort: float = 0.0

    def allowed(self, value: float) -> float:
        """Return the distance from the optimum allowed for an answer of this value."""
        return max(self.absolute, self.tolerance * abs(value))

    def reached(self, outcome: GoalOutcome) -> bool:
        """Return whether an answer is close enough to the bound to end all searches."""
        return outcome.distance <= self.allowed(outcome.value)

    def met(self, outcome: GoalOutcome) -> bool:
        """Return whether an answer is close enough where no quick search comes closer."""
        most = max(self.last_resort, LENIENT * self.allowed(outcome.value))
        return outcome.distance <= most

    def accepted(self, outcome: GoalOutcome) -> bool:
        """Return whether the best answer of a search that has ended is accepted."""
        return self.nodes > 0 or self.met(outcome)

    def bound(self, bound: float) -> float:
        """Return the least attainable value that is at least `bound`, ties apart."""
        if not self.step or not math.isfinite(bound):
            return bound
        return math.ceil(bound / self.step / (1.0 + self.ties) - ROUNDING) * self.step

    def counted(self, value: float) -> float:
        """Return the part of a value that is not a tie-break."""
        return math.floor(value / self.step + ROUNDING) * self.step if self.step else value

    def outcome(self, value: float, bound: float) -> GoalOutcome:
        """Return the outcome of a value, given a lower bound of the optimum."""
        distance = self.counted(value) - self.bound(bound)
        return GoalOutcome(value, distance if distance > ABSOLUTE_GAP else 0.0)

    def value(self, values: Values) -> float:
        """Return the weighted sum."""
        return sum(weight * float(values[column]) for column, weight in self.terms.items())

    def costs(self, width: int) -> Values:
        """Return the weights as an array of this many columns."""
        costs = np.zeros(width)
        costs[list(self.terms)] = list(self.terms.values())
        return costs


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer to a program.

    Attributes:
        values: Values by column.
        outcomes: Outcomes of the goals in order; missing for those not reached in time.
    """

    values: Values
    outcomes: tuple[GoalOutcome, ...]

    def count(self, column: int) -> int:
        """Return the value of an integer column."""
        return round(float(self.values[column]))


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The answer of a program's relaxation, in which columns may be fractions.

    Attributes:
        value: Value of the goal.
        values: Values by column.
        duals: Duals by row.
        prices: Reduced costs by column.
    """

    value: float
    values: Values
    duals: Values
    prices: Values

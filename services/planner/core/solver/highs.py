"""One mixed-integer linear program after another on the same columns, solved by HiGHS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

Terms = Mapping[int, float]
"""Coefficients by column."""

Numbers = NDArray[np.int32]
"""Numbers of columns or rows."""

Values = NDArray[np.float64]

SLACK = 1e-9
"""By how much a later goal may worsen an earlier one (a share, above 1): floating point's need."""

ABSOLUTE_GAP = 1e-7
"""An answer this close to its bound counts as optimal."""

LARGE = 300
"""Integer columns from which a start of our own saves time."""

SKETCH = 0.1
"""Share of the tolerance for a start of our own: it is small, so that precision costs little."""

SKETCH_NODES = 50
"""Nodes of the search tree after which such a start is good enough."""

MIN_TIME_S = 0.01
"""What a search gets whose time is over, so that it can at least take over a start, s."""

_AGGREGATOR = 1 << 12  # HighsPresolve's kPresolveRuleAggregator

OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
    "presolve_rule_off": _AGGREGATOR,
}
"""One thread and fixed tolerances: equal programs have equal answers.

Without the aggregator of HiGHS 1.15.1, with which presolve has lost optima and called what was left
proven (`test_exact_finds_the_optimum_where_presolve_misled_the_solver`).
"""


@dataclass(frozen=True, slots=True)
class GoalOutcome:
    """What became of one goal.

    Attributes:
        value: What the answer reaches.
        distance: How far below `value` the optimum can be at most; 0 where proven optimal,
            infinite where nothing is known.
    """

    value: float
    distance: float

    @classmethod
    def of(cls, value: float, bound: float) -> GoalOutcome:
        """Return the outcome of a value whose optimum is at least `bound`."""
        return cls(value, value - bound if value - bound > ABSOLUTE_GAP else 0.0)


@dataclass(frozen=True, slots=True)
class Goal:
    """What to make small.

    Attributes:
        terms: A weighted sum of columns.
        tolerance: Share of its value by which an answer may miss the optimum.
        absolute: By how much it may miss it in any case.
        nodes: Nodes of the search tree after which the best answer does, proven or not; 0: none
            does before the proof.
    """

    terms: Terms
    tolerance: float = 0.0
    absolute: float = 0.0
    nodes: int = 0

    def met(self, outcome: GoalOutcome) -> bool:
        """Return whether an answer is good enough for later goals to be looked at."""
        allowed = max(self.absolute, self.tolerance * abs(outcome.value))
        return self.nodes > 0 or outcome.distance <= allowed

    def value(self, values: Values) -> float:
        """Return the weighted sum."""
        return sum(weight * float(values[column]) for column, weight in self.terms.items())


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer.

    Attributes:
        values: By column.
        outcomes: Of the goals in order; those that time did not reach have none.
    """

    values: Values
    outcomes: tuple[GoalOutcome, ...]

    def or_better(self, other: Solution | None, goal: Goal) -> Solution:
        """Return the better of two answers to `goal`, which this one alone was made for."""
        outcome = self.outcomes[0]
        if other is None or goal.value(other.values) >= outcome.value:
            return self
        bound = outcome.value - outcome.distance
        return Solution(other.values, (GoalOutcome.of(goal.value(other.values), bound),))

    def above(self, bound: float) -> Solution:
        """Return the same answer to one goal, whose optimum is `bound` at least."""
        value = self.outcomes[0].value
        return Solution(self.values, (GoalOutcome.of(value, bound),))

    def count(self, column: int) -> int:
        """Return the value of an integer column."""
        return round(float(self.values[column]))


class Solver:
    """A program whose goal and bounds change between searches.

    Args:
        lp: The program, all columns 0 or more.
        integer: Which columns are integers.
    """

    def __init__(self, lp: Any, integer: NDArray[np.bool_]) -> None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[each] for each in integer.tolist()]
        self._integer = integer
        self._upper: Values = np.array(lp.col_upper_)
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # it has no types
        for option, value in OPTIONS.items():
            self._highs.setOptionValue(option, value)
        self._highs.passModel(lp)

    @property
    def run_time_s(self) -> float:
        """Time in searches so far, s."""
        return float(self._highs.getRunTime())

    def bar(self, columns: Numbers) -> None:
        """Keep columns at 0; presolve then drops them."""
        nothing = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), columns, nothing, nothing)

    def free(self, columns: Numbers) -> None:
        """Undo `bar`."""
        nothing = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), columns, nothing, self._upper[columns])

    def hold(self, goal: Goal, outcome: GoalOutcome) -> None:
        """Let no later search worsen `goal`."""
        counted = {column: weight for column, weight in goal.terms.items() if weight}
        columns = np.array(list(counted), dtype=np.int32)
        weights = np.array(list(counted.values()))
        if outcome.value <= SLACK and (weights > 0).all():
            self.bar(columns)
            self._upper[columns] = 0.0
        else:
            limit = outcome.value + SLACK * max(1.0, abs(outcome.value))
            self._highs.addRow(-highspy.kHighsInf, limit, len(columns), columns, weights)

    def search(
        self, goal: Goal, time_limit_s: float, start: Solution | None = None
    ) -> Solution | None:
        """Return the best answer to one goal, or None where there is none in time.

        Args:
            goal: What to make small.
            time_limit_s: Counts from the solver's first search.
            start: An answer to begin with, to whatever goal.
        """
        costs = np.zeros(len(self._upper))
        costs[list(goal.terms)] = list(goal.terms.values())
        self._highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)
        if self._integer.sum() > LARGE:
            sketch = self._sketch(goal, time_limit_s, start)
            if sketch is not None and goal.met(sketch.outcomes[0]):
                return sketch.or_better(start, goal)
            start = start or sketch
        if start is not None:
            self._start_from(start)
        return self._run(goal, time_limit_s)

    def _sketch(self, goal: Goal, time_limit_s: float, start: Solution | None) -> Solution | None:
        """Return a good answer, with its distance to the relaxation's value; None: none is at hand.

        It uses the columns that the relaxation or the start uses, and as many again that hardly
        cost more. In a large program this leaves few, and their best answer is nearly the best
        there is. HiGHS finds the same kind of answer by itself, but only after seconds of cuts.
        """
        self._highs.setOptionValue("solve_relaxation", True)
        relaxed = self._run(goal, time_limit_s)
        self._highs.setOptionValue("solve_relaxation", False)
        if relaxed is None:
            return None
        used = relaxed.values if start is None else np.maximum(relaxed.values, start.values)
        unused = np.flatnonzero(self._integer & (used < SLACK))
        spare = max(LARGE, int(self._integer.sum()) - len(unused))
        prices = np.abs(np.array(self._highs.getSolution().col_dual)[unused])
        left_out = unused[np.argsort(prices, kind="stable")[spare:]].astype(np.int32)
        self.bar(left_out)
        if start is not None:
            self._start_from(start)
        rough = Goal(goal.terms, SKETCH * goal.tolerance, SKETCH * goal.absolute, SKETCH_NODES)
        sketch = self._run(goal if goal.nodes else rough, time_limit_s)
        self.free(left_out)
        return sketch and sketch.above(relaxed.outcomes[0].value)

    def _start_from(self, answer: Solution) -> None:
        start = highspy.HighsSolution()
        start.col_value = list(answer.values)
        self._highs.setSolution(start)

    def _run(self, goal: Goal, time_limit_s: float) -> Solution | None:
        highs = self._highs
        highs.setOptionValue("mip_rel_gap", goal.tolerance)
        highs.setOptionValue("mip_abs_gap", max(goal.absolute, ABSOLUTE_GAP))
        highs.setOptionValue("mip_max_nodes", goal.nodes or highspy.kHighsIInf)
        highs.setOptionValue("time_limit", max(time_limit_s - self.run_time_s, MIN_TIME_S))
        highs.run()
        info = highs.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        value, bound = float(info.objective_function_value), float(info.mip_dual_bound)
        proven = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        if proven and not math.isfinite(bound):  # a relaxation by itself has no such bound
            bound = value
        return Solution(np.array(highs.getSolution().col_value), (GoalOutcome.of(value, bound),))

"""Mixed-integer linear programs with several goals.

A thin, typed builder: columns, rows and terms are added singly or as arrays and handed over
together. Goals are solved in order of importance: a later goal may not worsen an earlier one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from services.planner.core.solver.blocks import Blocks
from services.planner.core.solver.goals import (
    Goal,
    GoalOutcome,
    Linear,
    Numbers,
    Solution,
    Terms,
    Values,
)
from services.planner.core.solver.highs import SLACK, Solver

__all__ = ["Blocks", "Goal", "GoalOutcome", "Numbers", "Program", "Solution", "Terms"]

HOPE = 0.5
"""Share of the time for hoping; usually little of it is needed, and none in overload."""


@dataclass(slots=True)
class Program:
    """A program under construction. Columns and rows are numbered as they are added."""

    _uppers: list[Values] = field(default_factory=list)
    _integers: list[NDArray[np.bool_]] = field(default_factory=list)
    _bounds: list[Values] = field(default_factory=list)
    _entries: list[tuple[Numbers, Numbers, Values]] = field(default_factory=list)
    _width: int = 0
    _height: int = 0

    def columns(
        self, count: int, *, upper: ArrayLike = highspy.kHighsInf, integer: bool = False
    ) -> Numbers:
        """Add variables in 0..`upper`; return their numbers."""
        self._uppers.append(np.broadcast_to(np.asarray(upper, dtype=float), count))
        self._integers.append(np.full(count, integer))
        self._width += count
        return np.arange(self._width - count, self._width, dtype=np.int32)

    def rows(
        self,
        count: int,
        *,
        low: ArrayLike = -highspy.kHighsInf,
        high: ArrayLike = highspy.kHighsInf,
    ) -> Numbers:
        """Add constraints `low` <= sum of the row's terms <= `high`; return their numbers."""
        bounds = np.empty((2, count))
        bounds[0], bounds[1] = low, high
        self._bounds.append(bounds)
        self._height += count
        return np.arange(self._height - count, self._height, dtype=np.int32)

    def terms(self, rows: ArrayLike, columns: ArrayLike, coefficients: ArrayLike) -> None:
        """Add coefficient x column to rows; arrays are broadcast, terms of one place are summed."""
        spread = np.broadcast_arrays(rows, columns, np.asarray(coefficients, dtype=float))
        where, what, by = (np.ravel(each) for each in spread)
        self._entries.append((where.astype(np.int32), what.astype(np.int32), by))

    def column(self, *, upper: float = highspy.kHighsInf, integer: bool = False) -> int:
        """Add a variable in 0..`upper`; return its number."""
        return int(self.columns(1, upper=upper, integer=integer)[0])

    def row(
        self,
        terms: Iterable[tuple[int, float]],
        *,
        low: float = -highspy.kHighsInf,
        high: float = highspy.kHighsInf,
    ) -> None:
        """Add the constraint `low` <= sum of coefficient x column <= `high`."""
        given = list(terms)
        row = self.rows(1, low=low, high=high)
        self.terms(row, [column for column, _ in given], [by for _, by in given])

    def minimise(
        self,
        goals: Sequence[Goal],
        *,
        time_limit_s: float,
        hopes: int = 0,
        blocks: Blocks | None = None,
    ) -> Solution | None:
        """Minimise the goals in lexicographic order.

        Args:
            goals: The most important first.
            time_limit_s: Limit for all goals together, s.
            hopes: Number of leading goals that can usually all be 0 together, their least value;
                this is tried before they are minimised one by one.
            blocks: The program's independent knapsacks, where known.

        Returns:
            The best answer found; None: there is none, or none in time. Goals after the first whose
                proof ran out of time are not solved.
        """
        solver = Solver(self.linear, blocks)
        first = goals[: hopes + 1]
        answer = self._hope(solver, first, time_limit_s) if hopes else None
        if answer is None and hopes and all(goal.nodes for goal in first[:-1]):
            answer = self._share_out(solver, first, time_limit_s)
        for goal in goals[len(answer.outcomes) if answer else 0 :]:
            found = self._reach(solver, goal, answer, time_limit_s)
            if found is None:
                return answer
            answer = found
            if not goal.accepted(answer.outcomes[-1]):
                return answer
            solver.hold(goal, answer.outcomes[-1])
        return answer

    def _hope(self, solver: Solver, goals: Sequence[Goal], time_limit_s: float) -> Solution | None:
        """Hold all goals but the last at 0 and minimise the last; None: no answer was found.

        Mostly, but not always, the search sees at once when they cannot all be 0: hence HOPE.
        """
        *zeros, goal = goals
        columns = np.array(sorted({each for zero in zeros for each in zero.terms}), dtype=np.int32)
        solver.bar(columns)
        found = solver.search(goal, HOPE * time_limit_s)
        if found is None:
            solver.free(columns)
            return None
        met = Solution(found.values, (GoalOutcome(0.0, 0.0),) * len(zeros))
        if goal.met(found.outcomes[0]):
            met = Solution(found.values, met.outcomes + found.outcomes)
            solver.hold(goal, found.outcomes[0])
        return met

    def _share_out(
        self, solver: Solver, goals: Sequence[Goal], time_limit_s: float
    ) -> Solution | None:
        """Bring all goals but the last near their least; None: no quick search finds an answer."""
        *shortages, goal = goals
        answer = solver.share_out(shortages, goal, (1 + HOPE) / 2 * time_limit_s)
        if answer is not None:
            for each, outcome in zip(goals, answer.outcomes, strict=True):
                solver.hold(each, outcome)
        return answer

    def _reach(
        self, solver: Solver, goal: Goal, answer: Solution | None, time_limit_s: float
    ) -> Solution | None:
        """Return the answer to the next goal; None: there is none in time."""
        if answer is None:
            return solver.search(goal, time_limit_s)
        if _is_zero(goal, answer):
            return Solution(answer.values, (*answer.outcomes, GoalOutcome(0.0, 0.0)))
        if solver.run_time_s >= time_limit_s:
            return None
        found = solver.search(goal, time_limit_s, answer)
        return found and Solution(found.values, answer.outcomes + found.outcomes)

    @property
    def linear(self) -> Linear:
        """All columns and rows."""
        low, high = np.hstack([np.zeros((2, 0)), *self._bounds])
        return Linear(
            low, high, np.concatenate(self._uppers), np.concatenate(self._integers), *self._matrix()
        )

    def _matrix(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
        """Return coefficients by row: row starts, columns, values; terms of one place are summed.

        In numpy alone: importing `scipy.sparse` would take a twentieth of the planner's start.
        """
        where, what, by = (
            (np.concatenate(each) for each in zip(*self._entries, strict=True))
            if self._entries
            else (np.zeros(0, dtype=np.int32),) * 3
        )
        cells, which = np.unique(where.astype(np.int64) * self._width + what, return_inverse=True)
        starts = np.searchsorted(cells, np.arange(self._height + 1) * self._width)
        columns = cells % max(1, self._width)
        values = np.zeros(len(cells))
        np.add.at(values, which, by)
        return starts.astype(np.int32), columns.astype(np.int32), values


def _is_zero(goal: Goal, answer: Solution) -> bool:
    """Return whether an answer is optimal because it is 0: columns are never below 0."""
    positive = all(weight >= 0 for weight in goal.terms.values())
    return positive and goal.value(answer.values) <= SLACK

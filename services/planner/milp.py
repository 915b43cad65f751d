"""Mixed-integer linear programs, solved by HiGHS.

A thin, typed builder: columns and rows are added one by one and handed over as arrays at once.
Goals are solved in order of importance: each later goal may not worsen the earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

Terms = Mapping[int, float]
"""Coefficients by column."""

SLACK = 1e-9
"""By how much a later goal may worsen an earlier one: what floating point needs."""

ABSOLUTE_GAP = 1e-7
"""An answer this close to its bound counts as optimal."""

LARGE = 300
"""Integer columns from which a start of our own saves time."""

LEAST_TIME_S = 0.01
"""What a search gets whose time is over, so that it can at least take over a start, s."""

OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "mip_abs_gap": ABSOLUTE_GAP,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
}
"""One thread and fixed tolerances: equal programs have equal answers."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer.

    Attributes:
        values: By column.
        value: Of the last goal.
        distance: How far below `value` the optimum of the last goal can be at most; 0 where proven
            optimal, infinite where time ended on an earlier goal.
    """

    values: NDArray[np.float64]
    value: float
    distance: float

    def count(self, column: int) -> int:
        """Return the value of an integer column."""
        return round(float(self.values[column]))


@dataclass(slots=True)
class Program:
    """A program under construction. Columns are numbered as they are added."""

    _costs: list[float] = field(default_factory=list)
    _upper: list[float] = field(default_factory=list)
    _integer: list[bool] = field(default_factory=list)
    _rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)

    def column(self, *, upper: float = highspy.kHighsInf, integer: bool = False) -> int:
        """Add a variable in 0..`upper`; return its number."""
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self._upper) - 1

    def row(
        self,
        terms: Iterable[tuple[int, float]],
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """Demand `low` <= sum of coefficient x column <= `high`; None: no bound."""
        coefficients: dict[int, float] = {}
        for column, coefficient in terms:
            coefficients[column] = coefficients.get(column, 0.0) + coefficient
        self._rows.append(
            (
                coefficients,
                -highspy.kHighsInf if low is None else low,
                highspy.kHighsInf if high is None else high,
            )
        )

    def minimise(
        self, goals: Iterable[Terms], *, time_limit_s: float, relative_gap: float = 0.0
    ) -> Solution | None:
        """Minimise the goals in lexicographic order.

        Args:
            goals: The most important first; all but the last with positive coefficients.
            time_limit_s: For all goals together, s.
            relative_gap: Share of its value by which the last goal may miss its optimum.

        Returns:
            The best answer found, or None where there is none (or none was found in time).
        """
        solver = self._solver()
        solver.setOptionValue("mip_rel_gap", relative_gap)
        held: Terms | None = None
        answer: Solution | None = None
        for goal in goals:
            if answer is not None and held is not None:
                if answer.distance > 0 or solver.getRunTime() >= time_limit_s:
                    return replace(answer, distance=math.inf)
                _hold(solver, held, answer)
            answer = self._search(solver, goal, time_limit_s)
            held = goal
            if answer is None:
                return None
        return answer

    def _search(self, solver: Any, goal: Terms, time_limit_s: float) -> Solution | None:
        costs = np.zeros(len(self._upper))
        costs[list(goal)] = list(goal.values())
        solver.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)
        if sum(self._integer) > LARGE:
            self._sketch(solver, time_limit_s)
        return _run(solver, time_limit_s)

    def _sketch(self, solver: Any, time_limit_s: float) -> None:
        """Start the search from the best answer that uses only what the relaxation uses.

        HiGHS finds the same kind of answer by itself, but only after seconds of cuts.
        """
        solver.setOptionValue("solve_relaxation", True)
        relaxed = _run(solver, time_limit_s)
        solver.setOptionValue("solve_relaxation", False)
        if relaxed is None:
            return
        lp = solver.getLp()
        lower, upper = np.array(lp.col_lower_), np.array(lp.col_upper_)
        unused = np.flatnonzero(np.array(self._integer) & (relaxed.values < SLACK))
        unused = unused.astype(np.int32)
        nothing = np.zeros(len(unused))
        solver.changeColsBounds(len(unused), unused, nothing, nothing)
        sketch = _run(solver, time_limit_s)
        solver.changeColsBounds(len(unused), unused, lower[unused], upper[unused])
        if sketch is not None:
            _start_from(solver, sketch)

    def _solver(self) -> Any:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._upper), len(self._rows)
        lp.col_cost_ = np.zeros(lp.num_col_)
        lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.array(self._upper)
        lp.row_lower_ = np.array([low for _, low, _ in self._rows])
        lp.row_upper_ = np.array([high for _, _, high in self._rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        sizes = [len(terms) for terms, _, _ in self._rows]
        lp.a_matrix_.start_ = np.cumsum([0, *sizes], dtype=np.int32)
        lp.a_matrix_.index_ = np.array([c for row in self._rows for c in row[0]], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([v for row in self._rows for v in row[0].values()])
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[integer] for integer in self._integer]
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # the package has no types
        for option, value in OPTIONS.items():
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        return solver


def _hold(solver: Any, goal: Terms, answer: Solution) -> None:
    """Keep `goal` at what `answer` reached, and start the next search from `answer`."""
    counted = {column: weight for column, weight in goal.items() if weight}
    columns = np.array(list(counted), dtype=np.int32)
    weights = np.array(list(counted.values()))
    if answer.value <= SLACK:  # bounds of 0 let presolve drop the columns
        zeros = np.zeros(len(columns))
        solver.changeColsBounds(len(columns), columns, zeros, zeros)
    else:
        limit = answer.value + SLACK
        solver.addRow(-highspy.kHighsInf, limit, len(columns), columns, weights)
    _start_from(solver, answer)


def _start_from(solver: Any, answer: Solution) -> None:
    start = highspy.HighsSolution()
    start.col_value = list(answer.values)
    solver.setSolution(start)


def _run(solver: Any, time_limit_s: float) -> Solution | None:
    """Run until the time limit, which counts from the solver's first run."""
    left_s = time_limit_s - solver.getRunTime()
    solver.setOptionValue("time_limit", max(left_s, LEAST_TIME_S))
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    value = float(info.objective_function_value)
    proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    bound = float(info.mip_dual_bound)
    distance = value - bound if math.isfinite(bound) else (0.0 if proven else math.inf)
    return Solution(
        values=np.array(solver.getSolution().col_value),
        value=value,
        distance=distance if distance > ABSOLUTE_GAP else 0.0,
    )

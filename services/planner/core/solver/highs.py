"""A mixed-integer linear program whose goals are solved one after another with HiGHS."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import highspy
import numpy as np

from services.planner.core.solver.blocks import Blocks
from services.planner.core.solver.decomposition import FEW, Decomposition
from services.planner.core.solver.dive import Dive
from services.planner.core.solver.goals import (
    ABSOLUTE_GAP,
    ROUNDING,
    Goal,
    GoalOutcome,
    Linear,
    Numbers,
    Relaxed,
    Solution,
    Values,
)
from services.planner.core.solver.stopwatch import Stopwatch

SLACK = 1e-9
"""Share by which a later goal may worsen an earlier one, as floating point requires."""

LARGE = 150
"""Integer columns above which quick searches save time."""

ROOM = 0.4
"""Share of a shortage's tolerance that is given to whole numbers as room."""

SKETCH = 0.3
"""Share of the tolerance that a quick search aims for: precision is cheap in a small program."""

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

The aggregator of HiGHS 1.15.1 is off: with it presolve has lost optima and reported the rest as
proven (`test_exact_finds_the_optimum_where_presolve_misled_the_solver`).
"""


class Solver:
    """A program whose goal and bounds change between searches.

    Args:
        linear: The program.
        blocks: Its independent knapsacks, where it has any.
    """

    def __init__(self, linear: Linear, blocks: Blocks | None) -> None:
        self._linear, self._blocks = linear, blocks
        self._integers = np.flatnonzero(linear.integer).astype(np.int32)
        self._upper, self._allowed = linear.upper.copy(), linear.upper.copy()
        self._watch = Stopwatch()
        self._highs = _solver()
        self._watch.watch(self._highs)
        self._highs.passModel(_model(linear))

    @property
    def run_time_s(self) -> float:
        """Time since the solver was made, s; see `Stopwatch`."""
        return self._watch.time_s

    def bar(self, columns: Numbers) -> None:
        """Fix columns at 0; presolve then drops them."""
        self._allowed[columns] = 0.0
        self._bound(columns)

    def free(self, columns: Numbers) -> None:
        """Undo `bar`."""
        self._allowed[columns] = self._upper[columns]
        self._bound(columns)

    def hold(self, goal: Goal, outcome: GoalOutcome) -> None:
        """Keep all later searches from worsening `goal`."""
        counted = {column: weight for column, weight in goal.terms.items() if weight}
        columns = np.array(list(counted), dtype=np.int32)
        weights = np.array(list(counted.values()))
        if outcome.value <= SLACK and (weights > 0).all():
            self._upper[columns] = 0.0
            self.bar(columns)
        else:
            self._limit_goal(goal, outcome.value)

    def share_out(
        self, shortages: Sequence[Goal], goal: Goal, time_limit_s: float
    ) -> Solution | None:
        """Return a good answer where the goals before `goal` cannot be 0; None: no quick one.

        The relaxation gives the least value of each of them. Each gets a little more, so that whole
        numbers have room and the search minimises `goal` alone.

        Args:
            shortages: Goals over columns that are never below 0, the most important first.
            goal: The goal after them.
            time_limit_s: Limit, s since the solver was made.
        """
        goals, rows = (*shortages, goal), self._highs.getNumRow()
        least = self._in_turn(
            goals, lambda at, value: value + ROOM * goals[at].allowed(0.0), time_limit_s
        )
        found = None
        if self._blocks is not None and len(least) == len(goals):
            found = self._dived(goal, least[-1], time_limit_s, self._blocks)
        self._drop_rows(rows)
        answer = found and self._judged(goals, found, time_limit_s)
        return answer if answer and goal.met(answer.outcomes[-1]) else None

    def _judged(
        self, goals: Sequence[Goal], found: Solution, time_limit_s: float
    ) -> Solution | None:
        """Return the answer with the proven distance of each goal, given the goals before it."""
        rows, values = self._highs.getNumRow(), [each.value(found.values) for each in goals]
        bounds = self._in_turn(goals, lambda at, _: values[at], time_limit_s)
        self._drop_rows(rows)
        if len(bounds) < len(goals):
            return None
        outcomes = (
            each.outcome(value, bound.value)
            for each, value, bound in zip(goals, values, bounds, strict=True)
        )
        return Solution(found.values, tuple(outcomes))

    def _in_turn(
        self, goals: Sequence[Goal], limit: Callable[[int, float], float], time_limit_s: float
    ) -> Sequence[Relaxed]:
        """Return the relaxation's answers to one goal after another, up to the first without one.

        Every goal but the last leaves a row that limits it.

        Args:
            goals: The most important first.
            limit: Returns the limit of a goal for later ones, given its position and least value.
            time_limit_s: Limit, s since the solver was made.
        """
        found: list[Relaxed] = []
        for at, goal in enumerate(goals):
            if found:
                self._limit_goal(goals[at - 1], limit(at - 1, found[-1].value))
            self._aim(goal)
            relaxed = self.relaxed(time_limit_s)
            if relaxed is None:
                break
            found.append(relaxed)
        return found

    def _drop_rows(self, first: int) -> None:
        """Delete all rows from `first`."""
        rows = np.arange(first, self._highs.getNumRow(), dtype=np.int32)
        self._highs.deleteRows(len(rows), rows)

    def _aim(self, goal: Goal) -> None:
        costs = goal.costs(len(self._upper))
        self._highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)

    def _limit_goal(self, goal: Goal, value: float) -> None:
        """Add a row that keeps the goal's sum at `value` or below."""
        counted = {column: weight for column, weight in goal.terms.items() if weight}
        columns, weights = np.array(list(counted), dtype=np.int32), np.array(list(counted.values()))
        limit = value + SLACK * max(1.0, abs(value))
        self._highs.addRow(-highspy.kHighsInf, limit, len(columns), columns, weights)

    def search(
        self, goal: Goal, time_limit_s: float, start: Solution | None = None
    ) -> Solution | None:
        """Return the best answer to one goal; None: there is none in time.

        A large program is first relaxed (without an answer there, no search is needed), then
        rounded up, then searched quickly.

        Args:
            goal: The goal to minimise.
            time_limit_s: Limit, s since the solver was made.
            start: A feasible answer, to any goal.
        """
        self._aim(goal)
        bound, best = -math.inf, None
        relaxed = self.relaxed(time_limit_s) if len(self._integers) > LARGE else None
        if relaxed is not None:
            bound = relaxed.value
        elif len(self._integers) > LARGE:
            return None
        if start is not None:
            best = Solution(start.values, (goal.outcome(goal.value(start.values), bound),))
        if relaxed is not None:
            best = _better(goal, self._rounded_up(goal, relaxed, time_limit_s), best)
            if best is not None and goal.reached(best.outcomes[0]):
                return best
            best = _better(goal, self._quick(goal, relaxed, time_limit_s, best), best)
            if best is not None and goal.met(best.outcomes[0]):
                return best
        return _better(goal, self._run(goal, time_limit_s, best), best)

    def _quick(
        self, goal: Goal, relaxed: Relaxed, time_limit_s: float, start: Solution | None
    ) -> Solution | None:
        """Return an answer by the quick search that suits the goal; None: it finds none.

        Where demands take few items, the decomposition finds a better answer and a better bound,
        but only links may join the blocks.
        """
        blocks = self._blocks
        if blocks is None or goal.nodes or not goal.tolerance:
            return None
        items = float(relaxed.values[blocks.counts].sum()) / (int(blocks.block.max()) + 1)
        if items > FEW or self._overloaded(blocks):
            return self._dived(goal, relaxed, time_limit_s, blocks)
        return self._decomposed(goal, relaxed, time_limit_s, blocks, start)

    def _overloaded(self, blocks: Blocks) -> bool:
        """Return whether rows limit goals, or blocks may leave part of their demand uncovered."""
        limited = self._highs.getNumRow() > len(self._linear.low)
        return bool(limited or self._allowed[blocks.slack].any())

    def _bound(self, columns: Numbers) -> None:
        nothing = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), columns, nothing, self._allowed[columns])

    def relaxed(self, time_limit_s: float) -> Relaxed | None:
        """Return the answer of the program's relaxation; None: there is none in time."""
        highs = self._highs
        highs.setOptionValue("solve_relaxation", True)
        self._limit(time_limit_s)
        highs.run()
        highs.setOptionValue("solve_relaxation", False)
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        answer = highs.getSolution()
        return Relaxed(
            float(highs.getInfo().objective_function_value),
            np.array(answer.col_value),
            np.array(answer.row_dual),
            np.array(answer.col_dual),
        )

    def _rounded_up(self, goal: Goal, relaxed: Relaxed, time_limit_s: float) -> Solution | None:
        """Return a good answer: a relaxation's items, rounded up; None: it is not good enough.

        That relaxation leaves as much room in its rows as rounding up takes, so that the result
        fits ("A feasible rounding approach for mixed-integer optimization problems", Neumann, Stein
        and Sudermann-Merx, Computational Optimization and Applications 72, 2019). Where this room
        costs little, the answer is nearly optimal; goals that count things are not rounded up.
        """
        if self._blocks is None or goal.step or goal.nodes or not goal.tolerance:
            return None
        rows, room = self._room(relaxed.values, self._blocks)
        self.bound_rows(rows, self._linear.high[rows] - room)
        inner = self.relaxed(time_limit_s)
        self.bound_rows(rows, self._linear.high[rows])
        if inner is None:
            return None
        items = self._blocks.counts
        counts = np.minimum(np.ceil(inner.values[items] - ROUNDING), self._allowed[items])
        self._highs.changeColsBounds(len(items), items, counts, counts)
        found = self._run(_rough(goal, SKETCH), time_limit_s, None)
        self._bound(items)
        if found is None:
            return None
        outcome = goal.outcome(goal.value(found.values), relaxed.value)
        return Solution(found.values, (outcome,))

    def _room(self, values: Values, blocks: Blocks) -> tuple[Numbers, Values]:
        """Return the rows that limit integers, and the room that rounding up items takes there.

        The room includes one more for the other integers.
        """
        linear, height = self._linear, len(self._linear.low)
        rows = np.repeat(np.arange(height), np.diff(linear.starts))
        limiting = np.isneginf(linear.low) & np.isfinite(linear.high)
        limiting[blocks.rows] = False
        added = np.zeros(len(values))
        added[blocks.counts] = np.ceil(values[blocks.counts] - ROUNDING) - values[blocks.counts]
        taken = limiting[rows] & (linear.values > 0) & linear.integer[linear.columns]
        room = np.bincount(rows[taken], (linear.values * added[linear.columns])[taken], height)
        which = np.unique(rows[taken]).astype(np.int32)
        return which, np.ceil(room[which]) + 1.0

    def bound_rows(self, rows: Numbers, high: Values) -> None:
        """Set the upper bounds of rows."""
        low = np.full(len(rows), -highspy.kHighsInf)
        self._highs.changeRowsBounds(len(rows), rows, low, high)

    def bound_columns(self, columns: Numbers, low: Values, high: Values) -> None:
        """Set the bounds of columns."""
        self._highs.changeColsBounds(len(columns), columns, low, high)

    def _dived(
        self, goal: Goal, relaxed: Relaxed, time_limit_s: float, blocks: Blocks
    ) -> Solution | None:
        """Return the dive's answer; None: it finds none."""
        found = None
        if Dive(self._linear, blocks, goal, self._allowed, self).run(time_limit_s):
            found = self._run(_rough(goal, SKETCH), time_limit_s, None)
        self._bound(self._integers)
        if found is None:
            return None
        outcome = goal.outcome(goal.value(found.values), relaxed.value)
        return Solution(found.values, (outcome,))

    def _decomposed(
        self,
        goal: Goal,
        relaxed: Relaxed,
        time_limit_s: float,
        blocks: Blocks,
        start: Solution | None,
    ) -> Solution | None:
        """Return the better of `start` and the decomposition's answer, with the better bound."""
        now = replace(self._linear, upper=self._allowed)
        master = _solver()
        self._watch.watch(master)
        parts = Decomposition(now, blocks, goal, master, self._watch, relaxed.value)
        known = start.values if start else None
        values = parts.search(relaxed.duals, relaxed.values, known, time_limit_s)
        found = None
        if values is not None:
            found = Solution(values, (goal.outcome(goal.value(values), parts.bound),))
        return _better(goal, start, found, parts.bound)

    def _limit(self, time_limit_s: float) -> None:
        self._watch.limit(self._highs, time_limit_s)

    def _run(self, goal: Goal, time_limit_s: float, start: Solution | None) -> Solution | None:
        highs = self._highs
        if start is not None:
            answer = highspy.HighsSolution()
            answer.col_value = list(start.values)
            highs.setSolution(answer)
        highs.setOptionValue("mip_rel_gap", goal.tolerance)
        highs.setOptionValue("mip_abs_gap", max(goal.absolute, ABSOLUTE_GAP))
        highs.setOptionValue("mip_max_nodes", goal.nodes or highspy.kHighsIInf)
        self._limit(time_limit_s)
        highs.run()
        info = highs.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        value, bound = float(info.objective_function_value), float(info.mip_dual_bound)
        proven = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        if proven and not math.isfinite(bound):  # the relaxation alone gives no such bound
            bound = value
        return Solution(np.array(highs.getSolution().col_value), (goal.outcome(value, bound),))


def _rough(goal: Goal, share: float) -> Goal:
    return Goal(goal.terms, share * goal.tolerance, share * goal.absolute, nodes=1)


def _better(
    goal: Goal, one: Solution | None, other: Solution | None, bound: float = -math.inf
) -> Solution | None:
    """Return the better of two answers to one goal, with what is proven for either.

    Args:
        goal: The goal.
        one: An answer, or None.
        other: Another one.
        bound: Known lower bound of the optimum.
    """
    answers = [each for each in (one, other) if each is not None]
    if not answers:
        return None
    outcomes = [each.outcomes[0] for each in answers]
    best = min(answers, key=lambda each: each.outcomes[0].value)
    proven = max(bound, *(goal.counted(each.value) - each.distance for each in outcomes))
    return Solution(best.values, (goal.outcome(best.outcomes[0].value, proven),))


def _solver() -> Any:
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # it has no types
    for option, value in OPTIONS.items():
        highs.setOptionValue(option, value)
    return highs


def _model(linear: Linear) -> Any:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(linear.upper), len(linear.low)
    lp.col_cost_, lp.col_lower_ = np.zeros(len(linear.upper)), np.zeros(len(linear.upper))
    lp.col_upper_, lp.row_lower_, lp.row_upper_ = linear.upper, linear.low, linear.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = linear.starts, linear.columns
    lp.a_matrix_.value_ = linear.values
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[each] for each in linear.integer.tolist()]
    return lp

"""One mixed-integer linear program after another on the same columns, solved by HiGHS."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import highspy
import numpy as np

from services.planner.core.solver.decomposition import Blocks, Decomposition
from services.planner.core.solver.goals import (
    ABSOLUTE_GAP,
    Goal,
    GoalOutcome,
    Linear,
    Numbers,
    Solution,
    Values,
)

SLACK = 1e-9
"""By how much a later goal may worsen an earlier one (a share, above 1): floating point's need."""

LARGE = 150
"""Integer columns from which quick answers save time."""

BOX = 4
"""By how much integers may stay below the relaxation's in a quick answer, or be above its 0."""

SPARE = 100
"""Further columns that it may use, at least; else four times as many as the relaxation uses."""

MANY = 100
"""Items per block from which a decomposition rarely finds better ones than a quick answer has."""

SKETCH = 0.3
"""Share of the tolerance for a quick answer: precision costs little in a small program."""

SKETCH_NODES = 50
"""Nodes of the search tree after which it is good enough."""

SKETCH_TIME = 0.25
"""Share of the time after which it is good enough."""

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
class _Relaxed:
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


class Solver:
    """A program whose goal and bounds change between searches.

    Args:
        linear: The program.
        blocks: Its separate knapsacks, where it has some.
    """

    def __init__(self, linear: Linear, blocks: Blocks | None) -> None:
        self._linear, self._blocks = linear, blocks
        self._integers = np.flatnonzero(linear.integer).astype(np.int32)
        self._upper, self._allowed = linear.upper.copy(), linear.upper.copy()
        self._held = 0
        self._highs = _solver()
        self._highs.passModel(_model(linear))
        self._started_s = time.monotonic()

    @property
    def run_time_s(self) -> float:
        """Time since the solver was made, s."""
        return time.monotonic() - self._started_s

    def bar(self, columns: Numbers) -> None:
        """Keep columns at 0; presolve then drops them."""
        self._allowed[columns] = 0.0
        self._bound(columns)

    def free(self, columns: Numbers) -> None:
        """Undo `bar`."""
        self._allowed[columns] = self._upper[columns]
        self._bound(columns)

    def hold(self, goal: Goal, outcome: GoalOutcome) -> None:
        """Let no later search worsen `goal`."""
        counted = {column: weight for column, weight in goal.terms.items() if weight}
        columns = np.array(list(counted), dtype=np.int32)
        weights = np.array(list(counted.values()))
        if outcome.value <= SLACK and (weights > 0).all():
            self._upper[columns] = 0.0
            self.bar(columns)
        else:
            limit = outcome.value + SLACK * max(1.0, abs(outcome.value))
            self._highs.addRow(-highspy.kHighsInf, limit, len(columns), columns, weights)
            self._held += 1

    def search(
        self, goal: Goal, time_limit_s: float, start: Solution | None = None
    ) -> Solution | None:
        """Return the best answer to one goal, or None where there is none in time.

        In a large program, first that of its relaxation (where even that has none, no search is
        needed), then the best one near the relaxation's, then that of its decomposition.

        Args:
            goal: What to make small.
            time_limit_s: Counts from when the solver was made.
            start: An answer to begin with, to whatever goal.
        """
        costs = goal.costs(len(self._upper))
        self._highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)
        best = None
        if start is not None:
            outcome = goal.outcome(goal.value(start.values), -math.inf)
            best = Solution(start.values, (outcome,))
        if len(self._integers) > LARGE:
            relaxed = self._relaxed(time_limit_s)
            if relaxed is None:
                return None
            best = _better(goal, self._near(goal, relaxed, time_limit_s, best), best)
            if best is not None and goal.reached(best.outcomes[0]):
                return best
            blocks = self._separate
            enough = best is not None and goal.met(best.outcomes[0])
            if goal.tolerance and blocks is not None and not (enough and _many(blocks, relaxed)):
                best = self._decomposed(goal, blocks, relaxed, time_limit_s, best)
            if best is not None and goal.met(best.outcomes[0]):
                return best
        return _better(goal, self._run(goal, time_limit_s, best), best)

    @property
    def _separate(self) -> Blocks | None:
        """The blocks, where nothing but links joins them now."""
        if self._blocks is None or self._held or self._allowed[self._blocks.slack].any():
            return None
        return self._blocks

    def _bound(self, columns: Numbers) -> None:
        nothing = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), columns, nothing, self._allowed[columns])

    def _relaxed(self, time_limit_s: float) -> _Relaxed | None:
        highs = self._highs
        highs.setOptionValue("solve_relaxation", True)
        self._limit(time_limit_s)
        highs.run()
        highs.setOptionValue("solve_relaxation", False)
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        answer = highs.getSolution()
        return _Relaxed(
            float(highs.getInfo().objective_function_value),
            np.array(answer.col_value),
            np.array(answer.row_dual),
            np.array(answer.col_dual),
        )

    def _near(
        self, goal: Goal, relaxed: _Relaxed, time_limit_s: float, start: Solution | None
    ) -> Solution | None:
        """Return a good answer near the relaxation's; None: none is at hand.

        It uses the columns that the relaxation or the start uses, and others that hardly cost more.
        In a program whose demands take many items, their best answer is nearly the best there is.
        HiGHS finds the same kind of answer by itself, but only after seconds of cuts.
        """
        mine = self._integers
        low, high = relaxed.values[mine], relaxed.values[mine]
        if start is not None:
            low, high = np.minimum(low, start.values[mine]), np.maximum(high, start.values[mine])
        unused = high < SLACK
        low = np.where(unused, 0.0, np.maximum(np.floor(low + SLACK) - BOX, 0.0))
        high = np.minimum(np.where(unused, BOX, np.inf), self._allowed[mine])
        by_price = np.argsort(np.where(unused, np.abs(relaxed.prices[mine]), np.inf), kind="stable")
        kept = int((~unused).sum())
        high[by_price[: len(mine) - kept][max(SPARE, 4 * kept) :]] = 0.0
        self._highs.changeColsBounds(len(mine), mine, low, high)
        rough = goal if goal.nodes else _rough(goal, 1.0 if self._held else SKETCH)
        ends_s = min(time_limit_s, self.run_time_s + SKETCH_TIME * time_limit_s)
        found = self._run(rough, ends_s, start)
        self._bound(mine)
        if found is None:
            return None  # what is proven of other answers holds only near the relaxation's
        outcome = goal.outcome(goal.value(found.values), relaxed.value)
        return Solution(found.values, (outcome,))

    def _decomposed(
        self,
        goal: Goal,
        blocks: Blocks,
        relaxed: _Relaxed,
        time_limit_s: float,
        best: Solution | None,
    ) -> Solution | None:
        """Return the better one of `best` and the decomposition's answer, with the best bound."""
        now = replace(self._linear, upper=self._allowed)
        parts = Decomposition(now, blocks, goal, _solver(), relaxed.value)
        left_s = max(time_limit_s - self.run_time_s, MIN_TIME_S)
        start = best.values if best else None
        values = parts.search(relaxed.duals, relaxed.values, start, left_s)
        found = None
        if values is not None:
            found = Solution(values, (goal.outcome(goal.value(values), parts.bound),))
        return _better(goal, best, found, parts.bound)

    def _limit(self, time_limit_s: float) -> None:
        left_s = max(time_limit_s - self.run_time_s, MIN_TIME_S)
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + left_s)

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
        if proven and not math.isfinite(bound):  # a relaxation by itself has no such bound
            bound = value
        return Solution(np.array(highs.getSolution().col_value), (goal.outcome(value, bound),))


def _many(blocks: Blocks, relaxed: _Relaxed) -> bool:
    items = float(relaxed.values[blocks.counts].sum())
    return items > MANY * (int(blocks.block.max()) + 1)


def _rough(goal: Goal, share: float) -> Goal:
    return Goal(goal.terms, share * goal.tolerance, share * goal.absolute, SKETCH_NODES)


def _better(
    goal: Goal, one: Solution | None, other: Solution | None, bound: float = -math.inf
) -> Solution | None:
    """Return the better one of two answers to one goal; what is proven for one holds for both.

    Args:
        goal: The goal.
        one: An answer; None: there is none.
        other: Another one.
        bound: What the optimum is known to be at least.
    """
    answers = [each for each in (one, other) if each is not None]
    if not answers:
        return None
    outcomes = [each.outcomes[0] for each in answers]
    best = min(answers, key=lambda each: each.outcomes[0].value)
    proven = max(bound, *(each.value - each.distance for each in outcomes))
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

"""Dantzig-Wolfe decomposition: one knapsack per block, and a master program that links them.

A column of the master program is one way to cover a block's demand (Operations Research 8, 1960).
The duals of its relaxation are prices at which `knapsack` finds better columns. The least cost of
all blocks at any prices is a lower bound (Lagrange's), and the master program in integers gives an
answer. Where a demand takes few items, both are much better than the relaxation's.
"""

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from services.planner.core.solver import knapsack
from services.planner.core.solver.blocks import Blocks, LinkedBlocks
from services.planner.core.solver.goals import Goal, Linear, Values
from services.planner.core.solver.stopwatch import Stopwatch

ROUNDS = 12
"""Largest number of pricing rounds; later ones gain little."""

FEW = 40
"""Items per block above which a dive finds equally good answers sooner."""

CLOSE = 0.3
"""Share of the tolerance within which the master program's relaxation is close enough."""

ZERO = 1e-8
"""Tolerance for reduced costs below 0, which floating point causes."""

PENALTY = 1e3
"""Cost of leaving a block uncovered, relative to the largest cost of a column."""


@dataclass(frozen=True, slots=True)
class _Priced:
    """Items at given prices of the links. Attributes: items, and the cost of all other columns."""

    items: knapsack.Items
    rest: float


class Decomposition:
    """A program with one goal, decomposed.

    Attributes:
        bound: Proven lower bound of the goal's value.

    Args:
        linear: The program, with the column bounds in force.
        blocks: Its blocks.
        goal: The goal to minimise.
        highs: A HiGHS instance for the decomposition alone, with its options set.
        watch: Watches it.
        bound: Known lower bound of the goal's value.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # the program and its solver
        self,
        linear: Linear,
        blocks: Blocks,
        goal: Goal,
        highs: Any,
        watch: Stopwatch,
        bound: float,
    ) -> None:
        self.bound = bound
        self._linear, self._blocks, self._goal, self._master = linear, blocks, goal, highs
        self._watch = watch
        self._cost = goal.costs(len(linear.upper))
        self._linked = linked = LinkedBlocks(linear, blocks)
        self._size, self._low, self._high = linked.size, linked.low, linked.high
        self._rows, self._columns, self._values = linked.rows, linked.columns, linked.values
        self._owner = np.full(len(linear.upper), -1)
        self._owner[blocks.counts] = self._owner[blocks.loads] = blocks.block
        self._fixed = np.flatnonzero(self._owner < 0)
        self._found: list[tuple[NDArray[np.int64], Values]] = []
        self._start()

    def search(
        self, duals: Values, near: Values, start: Values | None, time_limit_s: float
    ) -> Values | None:
        """Return the values of the best answer found, or None; raises `bound` on the way.

        Args:
            duals: Initial prices by row of the program: the duals of its relaxation.
            near: Values close to an answer: those of the relaxation.
            start: An answer to improve.
            time_limit_s: Limit of the search for an answer in integers, s since the watch began.
        """
        priced = self._priced(duals[: len(self._linear.low)][self._linked.links])
        self._learn_bound(priced)
        items = priced.items
        for values in (start, near):
            if values is not None:
                rounded = np.ceil(values[self._blocks.counts] - ZERO)
                self._add(items, self._linked.padded(rounded).astype(np.int64))
        for counts in (knapsack.covers(items), *knapsack.alone(items)):
            self._add(items, counts)
        for _ in range(ROUNDS):
            self._master.run()
            value = float(self._master.getInfo().objective_function_value)
            if value - self.bound <= CLOSE * self._goal.allowed(value):
                break
            duals = np.array(self._master.getSolution().row_dual)
            priced = self._priced(duals[: len(self._low)])
            if self._goal.step:  # otherwise the relaxation's bound is as good
                self._learn_bound(priced)
            worth = duals[len(self._low) :]
            if not self._add(priced.items, knapsack.covers(priced.items), worth):
                break
        self._learn_bound(priced)
        return self._in_integers(start, time_limit_s)

    def _start(self) -> None:
        """Add the columns outside any block to the master program, and an empty one per block."""
        fixed = np.full(len(self._owner), -1)
        fixed[self._fixed] = np.arange(len(self._fixed))
        mine = fixed[self._columns] >= 0
        order = np.argsort(self._rows[mine], kind="stable")
        rows, columns = self._rows[mine][order], fixed[self._columns[mine]][order]
        links, width = len(self._low), len(self._fixed)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = width + self._size, links + self._size
        penalty = PENALTY * max(1.0, float(np.abs(self._cost).max()))
        lp.col_cost_ = np.append(self._cost[self._fixed], np.full(self._size, penalty))
        lp.col_lower_ = np.zeros(width + self._size)
        lp.col_upper_ = np.append(self._linear.upper[self._fixed], np.ones(self._size))
        lp.row_lower_ = np.append(self._low, np.ones(self._size))
        lp.row_upper_ = np.append(self._high, np.ones(self._size))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        starts = np.searchsorted(rows, np.arange(links + 1))
        ends = starts[-1] + np.arange(1, self._size + 1)
        lp.a_matrix_.start_ = np.append(starts, ends).astype(np.int32)
        none = width + np.arange(self._size)
        lp.a_matrix_.index_ = np.append(columns, none).astype(np.int32)
        lp.a_matrix_.value_ = np.append(self._values[mine][order], np.ones(self._size))
        self._master.passModel(lp)

    def _priced(self, duals: Values) -> _Priced:
        """Return the items at given prices of the links."""
        duals = np.where(np.isfinite(np.where(duals > 0, self._low, self._high)), duals, 0.0)
        reduced = self._linked.reduced(self._cost, duals)
        gains = reduced[self._fixed] < -ZERO
        gained = reduced[self._fixed][gains] @ self._linear.upper[self._fixed][gains]
        bought = duals != 0
        sides = np.where(duals > 0, self._low, self._high)[bought] @ duals[bought]
        return _Priced(self._linked.items(reduced), float(gained + sides))

    def _learn_bound(self, priced: _Priced) -> None:
        """Raise the bound to the least cost of all blocks at given prices."""
        self.bound = max(self.bound, priced.rest + float(knapsack.bounds(priced.items).sum()))

    def _add(
        self, items: knapsack.Items, counts: NDArray[np.int64], worth: Values | None = None
    ) -> int:
        """Add one column per block to the master program; return how many improve it.

        Args:
            items: The items at the current prices.
            counts: Items of each new column, shape (blocks, items); one that does not cover its
                block's demand is skipped.
            worth: Least cost of the master program's columns at these prices, by block; a new one
                must cost less. None: no such requirement.
        """
        loads = knapsack.filled(items, counts)
        price = (items.setup * counts + items.rate * loads).sum(axis=1)
        added = loads.sum(axis=1) >= 1.0 - knapsack.ROUNDING
        if worth is not None:
            added &= price < worth - ZERO * np.maximum(1.0, np.abs(worth))
        which = np.flatnonzero(added)
        if not len(which):
            return 0
        amounts = np.zeros(len(self._cost))
        amounts[self._blocks.counts] = self._linked.by_item(counts)
        amounts[self._blocks.loads] = self._linked.by_item(loads)
        owned = self._owner >= 0
        costs = np.bincount(self._owner[owned], (self._cost * amounts)[owned], self._size)
        links = len(self._low)
        mine = self._owner[self._columns] >= 0
        cells = self._owner[self._columns[mine]] * links + self._rows[mine]
        parts = self._values[mine] * amounts[self._columns[mine]]
        table = np.bincount(cells, parts, self._size * links).reshape(self._size, links)[which]
        at, rows = np.nonzero(np.hstack([table, np.ones((len(which), 1))]))
        ends = np.flatnonzero(rows == links)
        values = np.append(table, np.ones((len(which), 1)), axis=1)[at, rows]
        rows[ends] = links + which
        starts = np.append(0, ends[:-1] + 1).astype(np.int32)
        none, all_ = np.zeros(len(which)), np.full(len(which), highspy.kHighsInf)
        self._master.addCols(
            len(which), costs[which], none, all_, len(rows), starts, rows.astype(np.int32), values
        )
        self._found.append((which, amounts))
        return len(which)

    def _in_integers(self, start: Values | None, time_limit_s: float) -> Values | None:
        """Return an answer with one column per block, or None; the first columns are from `start`.

        In the relaxation most blocks have a single column already: these are fixed at first.
        """
        master, width = self._master, len(self._fixed)
        columns = np.arange(width + self._size, master.getNumCol())
        chosen = columns[np.array(master.getSolution().col_value)[columns] > 1.0 - ZERO]
        self._bound_columns(columns, 0.0, 1.0)
        self._bound_columns(np.arange(width, width + self._size), 0.0, 0.0)
        counted = np.ones(master.getNumCol(), dtype=bool)
        counted[:width] = self._linear.integer[self._fixed]
        integers = np.flatnonzero(counted).astype(np.int32)
        kinds = [highspy.HighsVarType.kInteger] * len(integers)
        master.changeColsIntegrality(len(integers), integers, kinds)
        master.setOptionValue("mip_max_nodes", 1)  # good answers come early
        self._bound_columns(chosen, 1.0, 1.0)
        best = self._searched(None, time_limit_s)
        values = [best[0]] if best else []
        values += [self._goal.value(start)] if start is not None else []
        met = values and self._goal.met(self._goal.outcome(min(values), self.bound))
        if not met:
            self._bound_columns(chosen, 0.0, 1.0)
            near = best[1] if best else None if start is None else self._known(start)
            best = self._searched(near, time_limit_s) or best
        return None if best is None else self._values_of(best[1])

    def _known(self, start: Values) -> Values:
        """Return values of the master program that are as close to `start` as its columns allow."""
        width = len(self._fixed)
        known = np.zeros(self._master.getNumCol())
        known[:width] = start[self._fixed]
        known[width + self._size :][: self._size] = 1.0
        return known

    def _bound_columns(
        self, columns: NDArray[np.signedinteger[Any]], low: float, high: float
    ) -> None:
        count = len(columns)
        bounds = np.full(count, low), np.full(count, high)
        self._master.changeColsBounds(count, columns.astype(np.int32), *bounds)

    def _searched(self, known: Values | None, time_limit_s: float) -> tuple[float, Values] | None:
        """Return the goal's value and the values of the master program's columns, or None."""
        master = self._master
        if known is not None:
            answer = highspy.HighsSolution()
            answer.col_value = list(known)
            master.setSolution(answer)
        self._watch.limit(master, time_limit_s)
        master.run()
        info = master.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return float(info.objective_function_value), np.array(master.getSolution().col_value)

    def _values_of(self, chosen: Values) -> Values:
        """Return the program's values for given values of the master program's columns."""
        values = np.zeros(len(self._cost))
        values[self._fixed] = chosen[: len(self._fixed)]
        at = len(self._fixed) + self._size
        for which, amounts in self._found:
            taken = which[chosen[at : at + len(which)] > 1 / 2]
            mine = np.isin(self._owner, taken)
            values[mine] = amounts[mine]
            at += len(which)
        return values

"""Diving heuristic: fixes the items of one group of blocks after another in whole numbers.

The relaxation gives each block fractions of one or two kinds of items. Nearly the same items and a
few others cover its demand in whole numbers at nearly the same cost; `knapsack` finds them at the
relaxation's prices. The blocks that lose least are fixed, and the relaxation of all others, solved
again, makes up for the loss. A few blocks are left to the solver.

Unused slices have degenerate duals: any price up to the cost of one more is dual feasible. While
diving, `MORE` of each kind of item is demanded in addition.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.planner.core.solver import knapsack
from services.planner.core.solver.blocks import Blocks, LinkedBlocks
from services.planner.core.solver.goals import ROUNDING, Goal, Linear, Numbers, Relaxed, Values

MORE = 0.01
"""Additional demand for each kind of item while diving, items."""

BOXES = (20, 8, 3, 0)
"""Slack below the relaxation's number of items of a kind, tried in this order, items."""

GROUPS = (0.25, 0.05)
"""Shares of the remaining blocks that are fixed together; the first with a small loss is taken."""

LAST = 2
"""Blocks left to the solver."""

MOST_LAST = 6
"""Largest number of blocks left to the solver where the others cannot be fixed."""

FAIR = 0.25
"""Share of the goal's tolerance that all blocks together may lose, in equal parts."""

WIDE = 4
"""Distance from the relaxation within which integers that are not fixed must end.

For each integer with a reduced cost HiGHS 1.15.1 records the cost of up to 1,000 values
(`HighsRedcostFixing::addRootRedcost`): most of the time of a small program with wide bounds.
"""

Whole = NDArray[np.int64]


class Relaxation(Protocol):
    """A program's relaxation with changeable bounds."""

    def bound_columns(self, columns: Numbers, low: Values, high: Values) -> None:
        """Set the bounds of columns."""

    def bound_rows(self, rows: Numbers, high: Values) -> None:
        """Set the upper bounds of rows."""

    def relaxed(self, time_limit_s: float) -> Relaxed | None:
        """Return the relaxation's answer; None: none in time."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One group of blocks whose items are fixed.

    Attributes:
        group: The blocks.
        counts: The fixed number of each item.
        relaxed: The relaxation's answer with them.
        loss: Increase of the goal per block.
    """

    group: Whole
    counts: Values
    relaxed: Relaxed
    loss: float


class Dive:
    """Whole numbers of items for all blocks but a few.

    Args:
        linear: The program.
        blocks: Its blocks.
        goal: The goal to minimise.
        most: Upper bounds of the columns.
        relaxation: The program's relaxation with this goal.
    """

    def __init__(
        self, linear: Linear, blocks: Blocks, goal: Goal, most: Values, relaxation: Relaxation
    ) -> None:
        self._linear, self._blocks, self._goal = linear, blocks, goal
        self._most, self._relaxation = most, relaxation
        self._linked = LinkedBlocks(linear, blocks)
        self._cost = goal.costs(len(most))

    def run(self, time_limit_s: float) -> bool:
        """Fix the items of all blocks but a few; return whether an answer with them may exist.

        Integers that are not fixed are kept near the relaxation, as the solver's time grows with
        the range they may take.

        Args:
            time_limit_s: Limit of each relaxation, s since the solver was made.
        """
        self._time_limit_s = time_limit_s
        relaxation, linked = self._relaxation, self._linked
        supplies = self._supplies()
        rows, high = np.flatnonzero(linked.links)[supplies].astype(np.int32), linked.high[supplies]
        relaxation.bound_rows(rows, high - MORE)
        relaxed = relaxation.relaxed(time_limit_s)
        free = np.arange(linked.size)
        while relaxed is not None and len(free) > LAST:
            step = self._step(relaxed, free)
            if step is None:
                break
            relaxed, free = step.relaxed, np.setdiff1d(free, step.group)
        relaxation.bound_rows(rows, high)
        if relaxed is None or len(free) > MOST_LAST:
            return False
        self._bound_others(relaxed, free)
        return True

    def _bound_others(self, relaxed: Relaxed, free: Whole) -> None:
        """Keep the integers that are not fixed near the relaxation."""
        fixed = self._blocks.counts[~np.isin(self._blocks.block, free)]
        columns = np.setdiff1d(np.flatnonzero(self._linear.integer), fixed).astype(np.int32)
        near = relaxed.values[columns]
        low = np.maximum(np.ceil(near - ROUNDING) - WIDE, 0.0)
        high = np.minimum(np.floor(near + ROUNDING) + WIDE, self._most[columns])
        self._relaxation.bound_columns(columns, np.minimum(low, high), high)

    def _supplies(self) -> NDArray[np.bool_]:
        """Return which links limit the number of items."""
        linked = self._linked
        counting = np.isin(linked.columns, self._blocks.counts) & (linked.values > 0)
        counts = np.bincount(linked.rows[counting], minlength=len(linked.low)) > 0
        return counts & np.isneginf(linked.low) & np.isfinite(linked.high)

    def _step(self, relaxed: Relaxed, free: Whole) -> _Step | None:
        """Fix the items of the blocks that lose least; None: none can be fixed."""
        fair = FAIR * self._goal.allowed(relaxed.value) / self._linked.size
        best: _Step | None = None
        for step in self._trials(relaxed, free):
            if best is None or step.loss < best.loss:
                best = step
            if best.loss <= fair:
                break
        if best is not None:
            self._fix(best.group, best.counts)
        return best

    def _trials(self, relaxed: Relaxed, free: Whole) -> Iterator[_Step]:
        """Yield candidate steps, the most promising first."""
        elastic = self._elastic(relaxed)[free]
        most = len(free) - LAST
        sizes = dict.fromkeys(min(max(1, round(share * len(free))), most) for share in GROUPS)
        for counts, losses in self._covers(relaxed, free):
            order = free[np.lexsort((losses, elastic))]
            for size in sizes:
                group = order[:size]
                self._fix(group, counts)
                found = self._relaxation.relaxed(self._time_limit_s)
                self._release(group)
                if found is not None:
                    yield _Step(group, counts, found, (found.value - relaxed.value) / size)

    def _fix(self, group: Whole, counts: Values) -> None:
        mine = np.isin(self._blocks.block, group)
        columns = self._blocks.counts[mine]
        values = np.minimum(counts[mine], self._most[columns])
        self._relaxation.bound_columns(columns, values, values)

    def _release(self, group: Whole) -> None:
        columns = self._blocks.counts[np.isin(self._blocks.block, group)]
        self._relaxation.bound_columns(columns, np.zeros(len(columns)), self._most[columns])

    def _covers(self, relaxed: Relaxed, free: Whole) -> Iterator[tuple[Values, Values]]:
        """Yield items that cover the demands of free blocks at little cost, by `BOXES`.

        Each is the number of each item, and by free block the cost above the relaxation's.
        """
        linked, blocks = self._linked, self._blocks
        items = linked.items(linked.reduced(self._cost, self._duals(relaxed))).rows(free)
        used = linked.padded(relaxed.values[blocks.counts])[free]
        loads = linked.padded(relaxed.values[blocks.loads])[free]
        demand = loads.sum(axis=1, keepdims=True)
        cost = (items.setup * used + items.rate * loads).sum(axis=1)
        needed = items.scaled(demand)
        for box in BOXES:
            kept = np.maximum(np.ceil(used - ROUNDING) - 1.0 - box, 0.0)
            left = 1.0 - (needed.share * kept).sum(axis=1, keepdims=True)
            counts = kept.astype(np.int64) + knapsack.covers(needed.scaled(left))
            counts[demand[:, 0] <= ROUNDING] = 0
            filled = knapsack.filled(needed, counts)
            every = np.zeros((linked.size, counts.shape[1]))
            every[free] = counts
            losses = (needed.setup * counts + needed.rate * filled).sum(axis=1) - cost
            yield linked.by_item(every), losses

    def _duals(self, relaxed: Relaxed) -> Values:
        """Return the duals of the links."""
        return relaxed.duals[: len(self._linked.links)][self._linked.links]

    def _elastic(self, relaxed: Relaxed) -> NDArray[np.bool_]:
        """Return the blocks that may be covered less, by which they make up for others' losses."""
        linked, uncovered = self._linked, self._blocks.uncovered
        binding = np.abs(self._duals(relaxed)) > ROUNDING
        bound = np.bincount(linked.columns, binding[linked.rows], minlength=len(self._most)) > 0
        elastic: NDArray[np.bool_] = (relaxed.values[uncovered] > ROUNDING) & ~bound[uncovered]
        return elastic

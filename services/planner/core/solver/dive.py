"""An answer near a relaxation's: whole numbers for one group of blocks after the other.

A diving heuristic. The relaxation gives a block fractions of one or two kinds of items. Nearly the
same items and a few others cover its demand in whole numbers at nearly the same cost; which these
are, `knapsack` says at the relaxation's prices. The blocks that lose least get theirs, and the
relaxation of all others, solved again, makes up for it. Few blocks are left in the end.

Prices must say what one more item costs, also of a kind of which the relaxation uses none, whose
price may otherwise be anything up to that: hence a little more of each kind is demanded meanwhile.
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
"""How much more of each kind of item is demanded, items."""

BOXES = (20, 8, 3, 0)
"""By how many of a kind of item a block may be below the relaxation; the first one that does."""

GROUPS = (0.25, 0.05)
"""Shares of the blocks left that get their items at once; the first that loses little."""

LAST = 2
"""Blocks that are left in the end."""

MOST_LAST = 6
"""Most of them where others do not fit."""

FAIR = 0.25
"""Share of what the goal may be missed by that all blocks together may lose, each as much."""

WIDE = 4
"""By how much integers that are not fixed may differ from the relaxation in the end.

HiGHS 1.15.1 notes for each integer with a reduced cost up to 1,000 values and what they cost
(`HighsRedcostFixing::addRootRedcost`): of a small program with wide bounds, most of the time.
"""

Whole = NDArray[np.int64]


class Relaxation(Protocol):
    """A program's relaxation, whose bounds change."""

    def bound_columns(self, columns: Numbers, low: Values, high: Values) -> None:
        """Keep columns within bounds."""

    def bound_rows(self, rows: Numbers, high: Values) -> None:
        """Keep rows at `high`, or below."""

    def relaxed(self, time_limit_s: float) -> Relaxed | None:
        """Return the answer; None: there is none in time."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Blocks whose items are fixed.

    Attributes:
        group: The blocks.
        counts: What is fixed, by item.
        relaxed: The relaxation's answer then.
        loss: By how much the goal is worse, per block.
    """

    group: Whole
    counts: Values
    relaxed: Relaxed
    loss: float


class Dive:
    """Whole numbers for the items of all blocks but a few.

    Args:
        linear: The program.
        blocks: Its blocks.
        goal: What to make small.
        most: Upper bounds of the columns.
        relaxation: The program's, with this goal.
    """

    def __init__(
        self, linear: Linear, blocks: Blocks, goal: Goal, most: Values, relaxation: Relaxation
    ) -> None:
        self._linear, self._blocks, self._goal = linear, blocks, goal
        self._most, self._relaxation = most, relaxation
        self._linked = LinkedBlocks(linear, blocks)
        self._cost = goal.costs(len(most))

    def run(self, time_limit_s: float) -> bool:
        """Fix the items of all blocks but a few; return whether there may be an answer with them.

        The other integers are kept near the relaxation, as the solver's time goes with how far they
        may be from it.

        Args:
            time_limit_s: For each relaxation, see there.
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
        """Return which links limit how many items there are."""
        linked = self._linked
        counting = np.isin(linked.columns, self._blocks.counts) & (linked.values > 0)
        counts = np.bincount(linked.rows[counting], minlength=len(linked.low)) > 0
        return counts & np.isneginf(linked.low) & np.isfinite(linked.high)

    def _step(self, relaxed: Relaxed, free: Whole) -> _Step | None:
        """Fix the items of some blocks, those that lose least; None: nothing fits."""
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
        """Yield steps, the one that is mostly best first."""
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

        How many, by item, and by free block what they cost more than the relaxation's.
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
        """Return the prices of the links."""
        return relaxed.duals[: len(self._linked.links)][self._linked.links]

    def _elastic(self, relaxed: Relaxed) -> NDArray[np.bool_]:
        """Return which blocks may as well be covered less: these make up for others."""
        linked, uncovered = self._linked, self._blocks.uncovered
        binding = np.abs(self._duals(relaxed)) > ROUNDING
        bound = np.bincount(linked.columns, binding[linked.rows], minlength=len(self._most)) > 0
        elastic: NDArray[np.bool_] = (relaxed.values[uncovered] > ROUNDING) & ~bound[uncovered]
        return elastic

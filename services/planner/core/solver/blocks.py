"""Which part of a program are separate knapsacks, and these at prices of what links them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.planner.core.solver import knapsack
from services.planner.core.solver.goals import Linear, Numbers, Values


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Which part of a program are separate knapsacks.

    Attributes:
        counts: Columns that count items.
        loads: Columns that say what these cover, in the same order.
        block: Of each item, 0, 1, ...; every block has one.
        share: What one item covers of its block's demand, at most.
        rows: Those that say that demands are covered, and what items can cover; the others link.
        uncovered: Columns that say which share of each block's demand is not covered.
        slack: All columns that must be 0 for `rows` to say no more than that.
    """

    counts: Numbers
    loads: Numbers
    block: Numbers
    share: Values
    rows: Numbers
    uncovered: Numbers
    slack: Numbers


class LinkedBlocks:
    """The blocks of a program, and the rows that link them.

    Attributes:
        size: Number of blocks.
        links: Which rows link.
        low, high: Their bounds.
        rows, columns, values: Their coefficients: the row's number among them, the column, itself.

    Args:
        linear: The program.
        blocks: Its blocks.
    """

    def __init__(self, linear: Linear, blocks: Blocks) -> None:
        self.size = int(blocks.block.max()) + 1
        self.links = np.ones(len(linear.low), dtype=bool)
        self.links[blocks.rows] = False
        self.low, self.high = linear.low[self.links], linear.high[self.links]
        number = np.where(self.links, np.cumsum(self.links) - 1, -1)
        rows = number[np.repeat(np.arange(len(number)), np.diff(linear.starts))]
        self.rows = rows[rows >= 0]
        self.columns, self.values = linear.columns[rows >= 0], linear.values[rows >= 0]
        self._blocks = blocks
        self._width = int(np.bincount(blocks.block).max())
        self._at = self._positions()

    def _positions(self) -> NDArray[np.int64]:
        """Return where items stand in arrays of shape (blocks, items), flattened."""
        block = self._blocks.block.astype(np.int64)
        order = np.argsort(block, kind="stable")
        first = np.searchsorted(block[order], block[order])
        position = np.empty(len(block), dtype=np.int64)
        position[order] = np.arange(len(block)) - first
        return block * self._width + position

    def padded(self, values: Values) -> Values:
        """Return values of items as an array of shape (blocks, items), with 0 for none."""
        padded = np.zeros(self.size * self._width)
        padded[self._at] = values
        return padded.reshape(self.size, self._width)

    def by_item(self, padded: NDArray[np.generic]) -> Values:
        """Return values of shape (blocks, items) in order of the items."""
        return padded.ravel()[self._at].astype(float)

    def reduced(self, cost: Values, duals: Values) -> Values:
        """Return what each column costs where links have prices.

        Args:
            cost: By column.
            duals: Prices of the links.
        """
        paid = np.bincount(self.columns, self.values * duals[self.rows], minlength=len(cost))
        reduced: Values = cost - paid
        return reduced

    def items(self, reduced: Values) -> knapsack.Items:
        """Return the blocks' items, given what columns cost."""
        return knapsack.Items(
            share=self.padded(self._blocks.share),
            setup=self.padded(np.maximum(reduced[self._blocks.counts], 0.0)),
            rate=self.padded(reduced[self._blocks.loads]),
        )

"""Independent knapsack blocks of a program, and their items at given prices of the links."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.planner.core.solver import knapsack
from services.planner.core.solver.goals import Linear, Numbers, Values


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The columns and rows of a program that form independent knapsacks.

    Attributes:
        counts: Columns that count items, integers.
        loads: Columns with the load that these items cover, in the same order.
        block: Block of each item, from 0; every block has at least one.
        share: Largest share of its block's demand that one item covers.
        rows: Rows that cover demands and limit what items cover; all other rows are links.
        uncovered: Columns with the share of each block's demand that is left uncovered.
        slack: All columns that must be 0 for `rows` to be plain knapsacks.
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
        links: Numbers of the linking rows.
        low, high: Bounds of the links.
        rows, columns, values: Coefficients of the links: position among them, column, value.

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
        """Return the items' positions in flattened arrays of shape (blocks, items)."""
        block = self._blocks.block.astype(np.int64)
        order = np.argsort(block, kind="stable")
        first = np.searchsorted(block[order], block[order])
        position = np.empty(len(block), dtype=np.int64)
        position[order] = np.arange(len(block)) - first
        return block * self._width + position

    def padded(self, values: Values) -> Values:
        """Return values of items as an array of shape (blocks, items), padded with 0."""
        padded = np.zeros(self.size * self._width)
        padded[self._at] = values
        return padded.reshape(self.size, self._width)

    def by_item(self, padded: NDArray[np.generic]) -> Values:
        """Return values of shape (blocks, items) in order of the items."""
        return padded.ravel()[self._at].astype(float)

    def reduced(self, cost: Values, duals: Values) -> Values:
        """Return the reduced cost of each column at given prices of the links.

        Args:
            cost: Cost by column.
            duals: Prices of the links.
        """
        paid = np.bincount(self.columns, self.values * duals[self.rows], minlength=len(cost))
        reduced: Values = cost - paid
        return reduced

    def items(self, reduced: Values) -> knapsack.Items:
        """Return the blocks' items at given costs of the columns."""
        return knapsack.Items(
            share=self.padded(self._blocks.share),
            setup=self.padded(np.maximum(reduced[self._blocks.counts], 0.0)),
            rate=self.padded(reduced[self._blocks.loads]),
        )

"""Cheapest covers of a demand by items, for many small knapsacks at once.

Each block has a demand of 1 and items that may be taken any number of times. An item costs `setup`
and covers up to `share` of the demand, at `rate` per unit covered:

    min  sum_i setup_i n_i + rate_i x_i     sum_i x_i = 1,  0 <= x_i <= share_i n_i,  n_i whole

In an optimum all items but one are full. Dynamic programming over the cover of full items, with one
last item for the rest, is exact up to the resolution of the demand: with covers rounded up it gives
a lower bound, with covers rounded down a feasible cover.

Most items are of the kind that is cheapest per unit, and the cover of all others matters only
modulo one such item: a ring of that length (Gomory's relaxation on a cyclic group, Linear Algebra
and its Applications 2, 1969).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Counts = NDArray[np.int64]

PARTS = 512
"""Parts into which the cheapest item is divided."""

ROUNDING = 1e-9
"""Rounding error of floating point, as a share of a part, of an item or of a demand."""


@dataclass(frozen=True, slots=True)
class Items:
    """Items that may be taken. All arrays have the shape (blocks, items).

    Attributes:
        share: Largest share of the block's demand that one covers; 0: there is no such item.
        setup: Cost of one, >= 0.
        rate: Cost of covering the whole demand with such items, without their setup.
    """

    share: Values
    setup: Values
    rate: Values

    def rows(self, which: NDArray[np.bool_] | Counts) -> Items:
        """Return the items of some of the blocks."""
        return Items(self.share[which], self.setup[which], self.rate[which])

    def columns(self, which: Counts) -> Items:
        """Return some items of each block, shape (blocks, items kept)."""
        return Items(
            np.take_along_axis(self.share, which, 1),
            np.take_along_axis(self.setup, which, 1),
            np.take_along_axis(self.rate, which, 1),
        )

    def scaled(self, demand: Values) -> Items:
        """Return the items for demands scaled by `demand`, shape (blocks, 1)."""
        demand = np.maximum(demand, ROUNDING)
        return Items(np.minimum(self.share / demand, 1.0), self.setup, self.rate * demand)

    @property
    def linear(self) -> Values:
        """Cost per unit of full items, infinite where there is no item."""
        cost: Values = self.setup / _divisor(self.share) + self.rate
        cost[self.share <= 0] = np.inf
        return cost


def bounds(items: Items) -> Values:
    """Return a lower bound of the cost of covering each block's demand, shape (blocks,)."""
    items, _ = _undominated(items)
    on_ring, _ = _covers(items, up=True)
    least: Values = np.maximum(on_ring, items.linear.min(axis=1))
    return least


def covers(items: Items) -> Counts:
    """Return the number of each item that covers each block's demand at nearly the least cost.

    Shape (blocks, items). Each block must have an item.
    """
    kept, which = _undominated(items)
    _, counts = _covers(kept, up=False)
    found = np.zeros(items.share.shape, dtype=np.int64)
    np.put_along_axis(found, which, _completed(kept, counts), 1)
    return found


def alone(items: Items) -> Iterator[Counts]:
    """Yield covers by one kind of item each; a block without another kind gets no items."""
    kept, which = _undominated(items)
    for column in range(which.shape[1]):
        share = kept.share[:, column]
        found = np.zeros(items.share.shape, dtype=np.int64)
        some = np.flatnonzero(share > 0)
        found[some, which[some, column]] = np.ceil(1.0 / share[some] - ROUNDING)
        yield found


def filled(items: Items, counts: Counts) -> Values:
    """Return the cover of counted items: the cheapest per unit are filled first."""
    order = np.argsort(items.rate, axis=1, kind="stable")
    held = np.take_along_axis(items.share * counts, order, 1)
    before = np.cumsum(held, axis=1) - held
    filled = np.zeros(held.shape)
    np.put_along_axis(filled, order, np.clip(1.0 - before, 0.0, held), 1)
    return filled


def _undominated(items: Items) -> tuple[Items, Counts]:
    """Return the items that no other of their block replaces at no more cost, and their positions.

    Blocks with fewer than others are padded with items of share 0.
    """
    share, setup, rate = items.share, items.setup, items.rate
    no_worse = (
        (share[:, None, :] >= share[:, :, None])
        & (setup[:, None, :] <= setup[:, :, None])
        & (rate[:, None, :] <= rate[:, :, None])
    )
    earlier = np.tri(share.shape[1], k=-1, dtype=bool)
    better = no_worse & (earlier | ~no_worse.transpose(0, 2, 1))
    kept = (share > 0) & ~better.any(axis=2)
    which, there = _first(np.zeros(share.shape), kept)
    left = items.columns(which)
    return Items(np.where(there, left.share, 0.0), left.setup, left.rate), which


def _covers(items: Items, *, up: bool) -> tuple[Values, Counts]:
    """Return the least cost of each block, and the items that have it.

    The cheapest item fills up the rest. Where it would have to be taken away, no items are
    returned.

    Args:
        items: At least one in each block.
        up: Whether covers are rounded up to whole parts, or down.
    """
    blocks = np.arange(len(items.share))
    cheapest = items.linear.argmin(axis=1)
    part = items.share[blocks, cheapest] / PARTS
    exact = items.share / part[:, None]
    width = (np.ceil(exact - ROUNDING) if up else np.floor(exact + ROUNDING)).astype(np.int64)
    held = Items(width * part[:, None], items.setup, items.rate)
    least = held.linear.min(axis=1)
    slope = items.rate - least[:, None]
    waste = np.where(width > 0, items.setup + slope * held.share, np.inf)

    left = ((1.0 / part) % PARTS)[:, None] - np.arange(PARTS)
    left = np.where(left < 0, left + PARTS, left)
    last, last_cost = _last(width, items.setup, slope * part[:, None], left)
    limit = last_cost[:, 0] + ROUNDING

    useful = (waste <= limit[:, None]) & (width > 0)
    useful[blocks, cheapest] = False
    which, there = _first(waste, useful)
    steps = [np.full((len(blocks), PARTS), np.inf)]
    steps[0][:, 0] = 0.0
    for turn in range(which.shape[1]):
        item = which[:, turn]
        size = np.where(there[:, turn], width[blocks, item], 0)
        cost = np.where(there[:, turn], waste[blocks, item], 0.0)
        fits = 1.0 / _divisor(held.share[blocks, item]) + ROUNDING
        affordable = limit / np.maximum(cost, 1e-12) + ROUNDING
        most = np.where(there[:, turn], np.minimum(np.minimum(fits, affordable), PARTS), 0.0)
        steps.append(_with_item(steps[-1], size, cost, most.astype(np.int64)))

    total = steps[-1] + last_cost
    at = total.argmin(axis=1)
    counts = np.zeros(width.shape, dtype=np.int64)
    value = least + total[blocks, at]
    final, rest = last[blocks, at], left[blocks, at]
    for turn in reversed(range(which.shape[1])):
        item = which[:, turn]
        taken, at = _taken(
            steps[turn], steps[turn + 1], at, width[blocks, item], waste[blocks, item]
        )
        counts[blocks, item] += taken
    rest = np.where(slope[blocks, final] < 0, _turned(width[blocks, final], rest), rest)
    covered = (counts * width).sum(axis=1) + np.where(final >= 0, rest, 0.0)
    counts[blocks[final >= 0], final[final >= 0]] += 1
    counts[covered > 1.0 / part + ROUNDING * PARTS] = 0
    return value, counts


def _last(width: Counts, setup: Values, slope: Values, left: Values) -> tuple[Counts, Values]:
    """Return the item that covers the rest best, and its cost; -1 where there is no rest.

    Whole cheapest items may cover some of it.

    Args:
        width: Parts that items cover, of shape (blocks, items).
        setup: Cost of one item.
        slope: Cost of each part.
        left: Parts of the rest, shape (blocks, places).
    """
    cost = np.where(left <= ROUNDING, 0.0, np.inf)
    item = np.full(left.shape, -1, dtype=np.int64)
    for column in range(width.shape[1]):
        held, by = width[:, column, None], slope[:, column, None]
        covered = np.where(by < 0, _turned(held, left), left)
        price = np.where(left <= held, setup[:, column, None] + by * covered, np.inf)
        better = price < cost
        cost, item = np.where(better, price, cost), np.where(better, column, item)
    return item, cost


def _with_item(steps: Values, size: Counts, cost: Values, most: Counts) -> Values:
    """Return the least cost by place with up to `most` of one more item.

    Args:
        steps: The least costs without it, shape (blocks, places).
        size: Places that one takes, by block.
        cost: Cost of one.
        most: Largest number of it.
    """
    blocks, parts = steps.shape
    places = (np.arange(blocks) * 2 * parts + parts)[:, None] + np.arange(parts)
    twice = np.full((blocks, 2 * parts), np.inf)
    left, times = most.copy(), 1
    while left.any():
        piece = np.minimum(times, left)
        twice[:, :parts] = twice[:, parts:] = steps
        shift = piece * size % parts
        moved = np.take(twice.ravel(), places - shift[:, None])
        steps = np.minimum(steps, moved + (piece * cost)[:, None])
        left -= piece
        times *= 2
    return steps


def _taken(
    before: Values, after: Values, at: Counts, size: Counts, cost: Values
) -> tuple[Counts, Counts]:
    """Return the number of an item in the least cost at a place, and the place without them."""
    blocks, parts = before.shape
    rows = np.arange(blocks)
    wanted = after[rows, at]
    taken, place = np.zeros(blocks, dtype=np.int64), at
    open_ = wanted < before[rows, at]
    times = 0
    while open_.any() and times <= parts:
        times += 1
        place = np.where(open_, (place - size) % parts, place)
        there = before[rows, place] + times * np.where(open_, cost, 0.0)
        found = open_ & (there <= wanted + ROUNDING)
        taken[found] = times
        at = np.where(found, place, at)
        open_ &= ~found
    return taken, at


def _turned(width: Counts, left: Values) -> Values:
    """Return the largest cover of an item that leaves whole turns, and the cover of the rest."""
    turns: Values = left + np.maximum(np.floor((width - left) / PARTS), 0.0) * PARTS
    return turns


def _completed(items: Items, counts: Counts) -> Counts:
    """Return feasible covers: cheapest items first, then the best last one."""
    blocks, counts = np.arange(len(counts)), counts.copy()
    cheapest = items.linear.argmin(axis=1)
    left = 1.0 - (items.share * counts).sum(axis=1)
    whole = np.floor(left / items.share[blocks, cheapest] + ROUNDING)
    counts[blocks, cheapest] += np.maximum(whole, 0).astype(np.int64)
    left = 1.0 - (items.share * counts).sum(axis=1)
    enough = (items.share > 0) & (items.share >= left[:, None] - ROUNDING)
    price = np.where(enough, items.setup + items.rate * left[:, None], np.inf)
    short = left > ROUNDING
    counts[blocks[short], price.argmin(axis=1)[short]] += 1
    return counts


def _first(keys: Values, wanted: NDArray[np.bool_]) -> tuple[Counts, NDArray[np.bool_]]:
    """Return the positions of each row's wanted entries, least first, and which are filled."""
    order = np.argsort(np.where(wanted, keys, np.inf), axis=1, kind="stable")
    most = int(wanted.sum(axis=1).max(initial=0))
    return order[:, :most], np.take_along_axis(wanted, order[:, :most], 1)


def _divisor(values: Values) -> Values:
    divisor: Values = np.where(values > 0, values, 1.0)
    return divisor

"""Depth-first branch and bound behind `allocation`: one level per variant.

Levels come in order of accuracy, and each takes as much of the load that is left as its size can
serve: for given sizes, nothing is better. Two bounds cut the tree:

    reach   the largest load that the levels to come can serve with the units that are left
    value   for any price mu >= 0 of a unit, x_j of the load on level j at density d_j (load per
            unit at best) takes x_j / d_j units at least, so that what is to come adds at most
            mu * units_left + load_left * max_j (worth_j - (unit_price + mu) / d_j)

The second is taken at mu = 0 and at the mu that is tightest for the whole problem.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from operator import itemgetter
from typing import NamedTuple

ROUNDING = 1e-9
"""Share of the load that floating point may leave over."""

BETTER = 1e-12
"""By how much an answer must beat the best so far: of equals, the first stays."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size of a variant.

    Attributes:
        units: Units that the size takes.
        capacity: Load it can serve.
        price: Of its units.
        load_s: Loading time, s.
        running: The size runs now, so that nothing is to be loaded.
    """

    units: int
    capacity: float
    price: float
    load_s: float
    running: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A variant. Attributes: worth of a unit of load; sizes, the smallest first."""

    worth: float
    sizes: tuple[Size, ...]

    @property
    def density(self) -> float:
        """Most load per unit; 0 without a size."""
        return max((size.capacity / size.units for size in self.sizes), default=0.0)


@dataclass(frozen=True, slots=True)
class Take:
    """A choice. Attributes: level, its size, the load that it takes."""

    level: int
    size: Size
    load: float


class _Node(NamedTuple):
    """A part of a choice: what the levels before `level` take (a tuple, as thousands are made).

    Attributes:
        level: Next level.
        units, load: Units and load that are left.
        value: Of what is taken, but for loading.
        load_s: Longest loading time of it.
        taken: The choice so far.
    """

    level: int
    units: int
    load: float
    value: float
    load_s: float
    taken: tuple[Take, ...]


@dataclass(slots=True)
class Search:
    """One search, for one load.

    Attributes:
        levels: The most accurate first.
        reach: Largest load by first level to come and number of units.
        budget: Units.
        load: To be served, > 0, at most `reach[0][budget]`.
        unit_price: Of a unit, as in the sizes' prices.
        loading_price: Of a second of the longest loading time.
        best_value: Of the best choice so far.
        nodes: Nodes visited to prove it.
    """

    levels: Sequence[Level]
    reach: Sequence[Sequence[float]]
    budget: int
    load: float
    unit_price: float
    loading_price: float
    best_value: float = field(default=float("-inf"), init=False)
    nodes: int = field(default=0, init=False)
    _best: tuple[Take, ...] = field(default=(), init=False)
    _rounding: float = field(init=False)
    _bounds: list[tuple[float, list[float]]] = field(init=False)

    def __post_init__(self) -> None:
        self._rounding = ROUNDING * self.load
        self._bounds = _bounds(self.levels, self.unit_price, self.budget, self.load)

    def run(self) -> tuple[Take, ...]:
        """Return the best choice."""
        self._descend(_Node(0, self.budget, self.load, 0.0, 0.0, ()))
        return self._best

    def _descend(self, node: _Node) -> None:
        """Try what can be added to `node`, the most promising first."""
        self.nodes += 1
        promising = []
        for child in self._children(node):
            value = child.value - self.loading_price * child.load_s
            if child.load <= self._rounding:
                if value > self.best_value + BETTER:
                    self.best_value, self._best = value, child.taken
            elif self.reach[child.level][child.units] >= child.load - self._rounding:
                bound = value + min(
                    price * child.units + child.load * slopes[child.level]
                    for price, slopes in self._bounds
                )
                promising.append((bound, child))
        promising.sort(key=itemgetter(0), reverse=True)
        for bound, child in promising:
            if bound <= self.best_value + BETTER:
                return
            self._descend(child)

    def _children(self, node: _Node) -> Iterator[_Node]:
        """Yield the node with each size of its level that is worth trying, and without any.

        Of the sizes that suffice, only the smallest is, and the one that runs now: it needs no
        loading, which may be worth its price.
        """
        level = self.levels[node.level]
        enough = False
        for size in level.sizes:
            if size.units > node.units or (enough and not size.running):
                continue
            load = min(size.capacity, node.load)
            enough = enough or (load == node.load and not size.running)
            yield _Node(
                node.level + 1,
                node.units - size.units,
                node.load - load,
                node.value + level.worth * load - size.price,
                max(node.load_s, size.load_s),
                (*node.taken, Take(node.level, size, load)),
            )
        yield node._replace(level=node.level + 1)


def _bounds(
    levels: Sequence[Level], unit_price: float, budget: int, load: float
) -> list[tuple[float, list[float]]]:
    """Return the prices mu with what a unit of load adds at most, by first level to come."""
    usable = [(level.worth, 1.0 / level.density) for level in levels if level.density > 0]

    def total(price: float) -> float:
        return price * budget + load * max(
            worth - (unit_price + price) * units for worth, units in usable
        )

    crossings = [
        (one[0] - other[0]) / (one[1] - other[1]) - unit_price
        for one, other in combinations(usable, 2)
        if one[1] != other[1]
    ]
    tightest = min((price for price in crossings if price > 0), key=total, default=0.0)
    return [
        (price, _slopes(levels, unit_price + price)) for price in dict.fromkeys((0.0, tightest))
    ]


def _slopes(levels: Sequence[Level], unit_price: float) -> list[float]:
    own = [
        level.worth - unit_price / level.density if level.density > 0 else float("-inf")
        for level in levels
    ]
    return [*reversed([*accumulate(reversed(own), max, initial=float("-inf"))])]

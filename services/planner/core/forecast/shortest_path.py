"""The best path through time: which state to be in, where being in a state and moving have a worth.

The graph has a node for each period and state, edges from each period's states to the next one's,
and on each edge the cost of moving and of then staying: the shortest path is the best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

Worth = tuple[float, ...]
"""Larger is better, the first number that differs decides. Worths add up number by number."""

DIGITS = 9
"""Decimals kept of a sum: worths that agree in them are equal, whatever the order of addition."""

_Node = tuple[int, int]
"""A period and a state. The start is in period -1, the end in the period after the last."""


class _Cost(tuple[float, ...]):
    """A negative worth; sums and comparisons are what a shortest path needs of a number."""

    __slots__ = ()

    def __add__(self, other: tuple[float, ...]) -> _Cost:  # type: ignore[override]
        return _Cost(round(a + b, DIGITS) for a, b in zip(self, other, strict=True))

    def __radd__(self, other: int) -> _Cost:
        """Return 0 + cost: a path starts with the length 0."""
        return self

    def __lt__(self, other: tuple[float, ...] | float) -> bool:
        """Compare number by number; a node that no path has reached yet is at infinity."""
        return isinstance(other, float) or super().__lt__(other)


def best_path(
    stays: Sequence[Sequence[Worth]],
    entries: Sequence[Worth],
    moves: Sequence[Sequence[Worth]],
) -> tuple[int, ...]:
    """Return the states of the best path, one for each period.

    Exact, since the order of worths is kept when the same is added to both. Costs may be negative,
    so that the algorithm is Bellman's and Ford's; its queue passes this graph period by period. Of
    equal paths, the one through the first of the states.

    Args:
        stays: Worth of each state in each period, at least one of both.
        entries: Worth (mostly negative: a price) of each state as the first.
        moves: Worth of going from a state (row) to another (column).
    """
    import networkx as nx  # noqa: PLC0415  # a third of a second that no service needs to start

    graph: nx.DiGraph[_Node] = nx.DiGraph()
    graph.add_edges_from(_edges(stays, entries, moves))
    path = nx.bellman_ford_path(graph, (-1, 0), (len(stays), 0), weight="cost")
    return tuple(state for _, state in path[1:-1])


def _edges(
    stays: Sequence[Sequence[Worth]],
    entries: Sequence[Worth],
    moves: Sequence[Sequence[Worth]],
) -> Iterator[tuple[_Node, _Node, dict[str, Any]]]:
    states, nothing = range(len(entries)), _Cost(0.0 for _ in entries[0])
    for state in states:
        yield (-1, 0), (0, state), {"cost": _cost(entries[state], stays[0][state])}
    for period, stay in enumerate(stays[1:], start=1):
        for before, after in product(states, states):
            cost = _cost(moves[before][after], stay[after])
            yield (period - 1, before), (period, after), {"cost": cost}
    for state in states:
        yield (len(stays) - 1, state), (len(stays), 0), {"cost": nothing}


def _cost(move: Worth, stay: Worth) -> _Cost:
    return _Cost(-round(a + b, DIGITS) for a, b in zip(move, stay, strict=True))

"""The best way through time: which state to be in, when being somewhere and moving have a worth."""

from __future__ import annotations

from collections.abc import Sequence

Worth = tuple[float, ...]
"""Larger is better, the first number that differs decides. Worths add up number by number."""

Way = tuple[Worth, tuple[int, ...]]
"""What a way is worth, and the states it goes through."""

DIGITS = 9
"""What floating point leaves of a sum: two worths that agree so far are equal."""


def best_way(
    stays: Sequence[Sequence[Worth]],
    entries: Sequence[Worth],
    moves: Sequence[Sequence[Worth]],
) -> tuple[int, ...]:
    """Return the states of the best way, one for each period.

    Dynamic programming, exact: the order of worths is kept when the same is added to both, so the
    best way to a state is the beginning of a best way through it. Of equal ways, the one through
    the first of the states.

    Args:
        stays: Worth of each state in each period, at least one of both.
        entries: Worth (mostly negative: a price) of each state as the first.
        moves: Worth of going from a state (row) to another (column).
    """
    ways: list[Way] = [
        (_sum(entry, stay), (state,))
        for state, (entry, stay) in enumerate(zip(entries, stays[0], strict=True))
    ]
    for stay in stays[1:]:
        ways = [_extended(ways, moves, state, worth) for state, worth in enumerate(stay)]
    return max(ways, key=lambda way: way[0])[1]


def _extended(
    ways: Sequence[Way], moves: Sequence[Sequence[Worth]], state: int, stay: Worth
) -> Way:
    arrived = ((_sum(worth, moves[way[-1]][state]), way) for worth, way in ways)
    worth, way = max(arrived, key=lambda each: each[0])
    return _sum(worth, stay), (*way, state)


def _sum(one: Worth, other: Worth) -> Worth:
    return tuple(round(a + b, DIGITS) for a, b in zip(one, other, strict=True))

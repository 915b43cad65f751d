"""The best path through time, where being in a state and moving to another have a worth."""

from collections.abc import Sequence
from operator import itemgetter

Worth = tuple[float, ...]
"""Larger is better, the first number that differs decides. Worths add up number by number."""

DIGITS = 9
"""Decimals kept of a sum: worths that agree in them are equal, whatever the order of addition."""


def best_path(
    stays: Sequence[Sequence[Worth]],
    entries: Sequence[Worth],
    moves: Sequence[Sequence[Worth]],
) -> tuple[int, ...]:
    """Return the states of the best path, one for each period.

    Exact, by Bellman's recursion over the periods: the order of worths is kept when the same is
    added to both. Of equal paths, the one through the first of the states.

    Args:
        stays: Worth of each state in each period, at least one of both.
        entries: Worth (mostly negative: a price) of each state as the first.
        moves: Worth of going from a state (row) to another (column).
    """
    states, worth = range(len(entries)), itemgetter(0)
    best: list[tuple[Worth, tuple[int, ...]]] = [
        (_sum(entries[state], stays[0][state]), (state,)) for state in states
    ]
    for stay in stays[1:]:
        best = [
            max(
                (
                    (_sum(known, moves[path[-1]][state], stay[state]), (*path, state))
                    for known, path in best
                ),
                key=worth,
            )
            for state in states
        ]
    return max(best, key=worth)[1]


def _sum(*worths: Worth) -> Worth:
    return tuple(round(sum(parts), DIGITS) for parts in zip(*worths, strict=True))

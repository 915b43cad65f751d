"""The best path through time, given the worth of each state and of each move.

Viterbi's recursion ("Error bounds for convolutional codes", IEEE Transactions on Information
Theory 13, 1967): of all paths to a state, only the best one matters later.
"""

from collections.abc import Sequence

Worth = tuple[float, ...]
"""Larger is better; the first number that differs decides. Worths add up number by number."""

DIGITS = 9
"""Decimals kept of a sum: worths that agree in them are equal in any order of addition."""


def best_path(
    stays: Sequence[Sequence[Worth]],
    entries: Sequence[Worth],
    moves: Sequence[Sequence[Worth]],
) -> tuple[int, ...]:
    """Return the states of the best path, one for each period.

    Exact, since adding the same worth to two others keeps their order. Of equal paths, the one
    through the first of the states wins.

    Args:
        stays: Worth of each state in each period, at least one of both.
        entries: Worth (usually negative: a price) of each state as the first.
        moves: Worth of moving from a state (row) to another (column).
    """
    states = range(len(entries))
    reached: list[tuple[Worth, tuple[int, ...]]] = [
        (_sum(entries[state], stays[0][state]), (state,)) for state in states
    ]
    for stay in stays[1:]:
        reached = [
            max(
                (
                    (_sum(worth, moves[path[-1]][state], stay[state]), (*path, state))
                    for worth, path in reached
                ),
                key=lambda each: each[0],
            )
            for state in states
        ]
    return max(reached, key=lambda each: each[0])[1]


def _sum(*worths: Worth) -> Worth:
    return tuple(round(sum(parts), DIGITS) for parts in zip(*worths, strict=True))

"""Covers by dynamic programming, against trying every one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.solver.knapsack import Items, alone, bounds, covers
from tests.support.examples import examples

Item = tuple[float, float, float]
"""Share, setup and rate."""

items = st.lists(
    st.tuples(st.floats(0.09, 1.6), st.floats(0.0, 2.0), st.floats(-1.0, 1.0)),
    min_size=1,
    max_size=3,
)


def arrays(chosen: list[Item]) -> Items:
    share, setup, rate = (np.array([[each[part] for each in chosen]]) for part in range(3))
    return Items(share, setup, rate)


def cost(chosen: list[Item], counts: tuple[int, ...]) -> float:
    """Return the cost of counted items that cover all; infinite where they do not."""
    left, total = 1.0, sum(n * setup for n, (_, setup, _) in zip(counts, chosen, strict=True))
    for (share, _, rate), n in sorted(
        zip(chosen, counts, strict=True), key=lambda each: each[0][2]
    ):
        covered = min(left, n * share)
        left, total = left - covered, total + rate * covered
    return total if left < 1e-9 else float("inf")


def least(chosen: list[Item]) -> float:
    most = (range(int(np.ceil(1.0 / share)) + 1) for share, _, _ in chosen)
    return min(cost(chosen, counts) for counts in product(*most))


@examples(2.0)
@given(items)
def test_bounds_are_never_above_the_optimum_nor_covers_below(chosen: list[Item]) -> None:
    """For any items, also such that cost nothing or gain; and covers cover."""
    problem, optimum = arrays(chosen), least(chosen)
    assert bounds(problem)[0] <= optimum + 1e-7
    for counts in (covers(problem), *alone(problem)):
        found = cost(chosen, tuple(int(n) for n in counts[0]))
        assert optimum - 1e-7 <= found < float("inf")


def test_both_are_close_where_items_are_small() -> None:
    """Of 200 demands of 3 to 100 items of seven kinds, bound and cover differ by 1 % together."""
    draw = np.random.default_rng(0)
    share = draw.uniform(0.01, 0.3, (200, 7))
    problem = Items(share, share * draw.uniform(1.0, 1.3, share.shape), np.zeros(share.shape))
    found = (covers(problem) * problem.setup).sum()
    low = bounds(problem).sum()
    assert problem.linear.min(axis=1).sum() < low <= found
    assert found == pytest.approx(low, rel=0.01)

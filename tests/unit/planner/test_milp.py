"""Goals in order of importance, against trying every answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner import milp
from services.planner.milp import Program

UPPER = 3
weights = st.lists(st.integers(0, 9).map(float), min_size=3, max_size=3)
rows = st.lists(st.tuples(weights, st.integers(1, 12)), min_size=1, max_size=3)


def program(demands: list[tuple[list[float], int]]) -> Program:
    made = Program()
    columns = [made.column(upper=UPPER, integer=True) for _ in range(3)]
    for coefficients, low in demands:
        made.row(zip(columns, coefficients, strict=True), low=float(low))
    return made


def answers(demands: list[tuple[list[float], int]]) -> Iterator[tuple[int, ...]]:
    for values in product(range(UPPER + 1), repeat=3):
        if all(dot(coefficients, values) >= low for coefficients, low in demands):
            yield values


def dot(coefficients: list[float], values: tuple[int, ...]) -> float:
    return sum(c * v for c, v in zip(coefficients, values, strict=True))


@pytest.mark.parametrize("large", [0, milp.LARGE], ids=["with a sketch", "without"])
def test_goals_are_met_in_order(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    """The first goal's optimum, then the second's among those; the last may be a gain."""
    monkeypatch.setattr(milp, "LARGE", large)

    @settings(deadline=None, max_examples=40)
    @given(rows, weights, weights)
    def check(
        demands: list[tuple[list[float], int]], first: list[float], last: list[float]
    ) -> None:
        gain = [-each for each in last]
        goals = [dict(enumerate(first)), dict(enumerate(gain))]
        found = program(demands).minimise(goals, time_limit_s=10.0)
        ranked = sorted((dot(first, v), dot(gain, v)) for v in answers(demands))
        if not ranked:
            assert found is None
            return
        assert found is not None
        values = tuple(found.count(column) for column in range(3))
        assert (dot(first, values), dot(gain, values)) == pytest.approx(ranked[0], abs=1e-6)
        assert found.distance == 0

    check()


def test_bounds_of_both_kinds_hold() -> None:
    made = Program()
    column = made.column()
    made.row([(column, 2.0), (column, 1.0)], low=3.0, high=6.0)
    least, most = (made.minimise([{column: sign}], time_limit_s=1.0) for sign in (1.0, -1.0))
    assert least is not None
    assert most is not None
    assert (least.values[column], most.values[column]) == pytest.approx((1.0, 2.0))


def test_what_time_cuts_short_is_not_called_proven() -> None:
    """An answer to the first goal alone says so by an infinite distance."""
    made = Program()
    columns = [made.column(upper=9, integer=True) for _ in range(4)]
    made.row([(column, 1.0) for column in columns], low=5.0)
    goals = [dict.fromkeys(columns, 1.0), {columns[0]: 1.0}]
    found = made.minimise(goals, time_limit_s=0.0)
    assert found is not None
    assert found.distance == math.inf
    assert found.values.sum() == pytest.approx(5.0)

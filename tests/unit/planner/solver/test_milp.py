"""Goals in order of importance, against trying every answer."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.solver import dive, highs
from services.planner.core.solver.milp import Blocks, Goal, Program
from tests.support.examples import examples

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


@pytest.mark.parametrize("large", [0, highs.LARGE], ids=["with a sketch", "without"])
def test_goals_are_met_in_order(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    """The first goal's optimum, then the second's among those; the last may be a gain."""
    monkeypatch.setattr(highs, "LARGE", large)

    @examples(0.4)
    @given(rows, weights, weights)
    def check(
        demands: list[tuple[list[float], int]], first: list[float], last: list[float]
    ) -> None:
        gain = [-each for each in last]
        goals = [Goal(dict(enumerate(first))), Goal(dict(enumerate(gain)))]
        found = program(demands).minimise(goals, time_limit_s=10.0)
        ranked = sorted((dot(first, v), dot(gain, v)) for v in answers(demands))
        if not ranked:
            assert found is None
            return
        assert found is not None
        values = tuple(found.count(column) for column in range(3))
        assert (dot(first, values), dot(gain, values)) == pytest.approx(ranked[0], abs=1e-6)
        assert [each.distance for each in found.outcomes] == [0, 0]
        assert [each.value for each in found.outcomes] == pytest.approx(ranked[0], abs=1e-6)

    check()


@pytest.mark.parametrize("last", [0, 2], ids=["every block is fixed", "no block is fixed"])
@pytest.mark.parametrize("step", [1.0, 0.0], ids=["things are counted", "a sum is small"])
def test_a_shared_out_shortage_and_the_goal_after_it_are_truly_bounded(
    monkeypatch: pytest.MonkeyPatch, step: float, last: int
) -> None:
    """No answer has a shortage, or with at most this shortage costs, below what is proven."""
    monkeypatch.setattr(highs, "LARGE", 0)
    monkeypatch.setattr(dive, "LAST", last)
    most = 4

    @examples(0.2)
    @given(st.lists(st.floats(0.05, 0.4), min_size=4, max_size=4))
    def check(shares: list[float]) -> None:
        made = Program()
        counts = made.columns(4, upper=UPPER, integer=True)
        loads = made.columns(4, upper=1.0)
        uncovered = made.columns(2, upper=1.0)
        block = np.array([0, 0, 1, 1], dtype=np.int32)
        capacity, demand = made.rows(4, high=0.0), made.rows(2, low=1.0, high=1.0)
        made.terms(capacity, loads, 1.0)
        made.terms(capacity, counts, np.negative(shares))
        made.terms(demand[block], loads, 1.0)
        made.terms(demand, uncovered, 1.0)
        made.row([(int(column), 1.0) for column in counts], high=most)
        goals = [
            Goal(dict.fromkeys(uncovered.tolist(), 1.0), absolute=0.1, nodes=1),
            Goal(dict.fromkeys(counts.tolist(), 1.0), tolerance=0.01, step=step, last_resort=1.0),
        ]
        rows = np.concatenate([capacity, demand])
        blocks = Blocks(counts, loads, block, np.array(shares), rows, uncovered, uncovered)
        found = made.minimise(goals, time_limit_s=10.0, hopes=1, blocks=blocks)
        assert found is not None
        lacking, spent = found.outcomes
        values = [found.count(column) for column in counts.tolist()]
        assert sum(values) <= most
        assert missed(shares, values) <= lacking.value + 1e-6
        for other in product(range(UPPER + 1), repeat=4):
            if sum(other) <= most:
                assert missed(shares, other) >= lacking.value - lacking.distance - 1e-6
                if missed(shares, other) <= lacking.value:
                    assert sum(other) >= spent.value - spent.distance - 1e-6

    check()


def missed(shares: Sequence[float], counts: Sequence[int]) -> float:
    """Return what two items of each of two blocks leave uncovered."""
    covered = [share * count for share, count in zip(shares, counts, strict=True)]
    return sum(max(0.0, 1.0 - sum(covered[at : at + 2])) for at in (0, 2))


def test_twice_the_tolerance_will_do_where_nothing_quick_comes_closer() -> None:
    """Never more than that."""
    goal = Goal({}, tolerance=0.001)
    met = [goal.met(goal.outcome(100.0, bound)) for bound in (99.91, 99.81, 99.61)]
    assert met == [True, True, False]

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


def test_where_a_proof_takes_minutes_four_times_the_tolerance_will_do() -> None:
    """Elsewhere twice will do; never more than either says."""
    goal = Goal({}, tolerance=0.001)
    met = [goal.met(goal.outcome(100.0, bound)) for bound in (99.81, 99.61, 99.5)]
    nearly = [goal.nearly_met(goal.outcome(100.0, bound)) for bound in (99.81, 99.61, 99.5)]
    assert (met, nearly) == ([True, False, False], [True, True, False])


def test_ties_do_not_count_as_what_an_answer_may_miss() -> None:
    """Of 12.4 GPUs, 0.4 of which break ties, one can be too many where 10.5 are needed at least."""
    goal = Goal({}, step=1.0, ties=0.01)
    assert goal.outcome(12.4, 10.5).distance == 1.0
    assert goal.outcome(11.4, 10.5).distance == 0.0


def test_bounds_of_both_kinds_hold() -> None:
    made = Program()
    column = made.column()
    made.row([(column, 2.0), (column, 1.0)], low=3.0, high=6.0)
    least, most = (made.minimise([Goal({column: sign})], time_limit_s=1.0) for sign in (1.0, -1.0))
    assert least is not None
    assert most is not None
    assert (least.values[column], most.values[column]) == pytest.approx((1.0, 2.0))


def test_what_time_cuts_short_is_not_called_proven() -> None:
    """An answer to the first goal alone says nothing of the second."""
    made = Program()
    columns = [made.column(upper=9, integer=True) for _ in range(4)]
    made.row([(column, 1.0) for column in columns], low=5.0)
    goals = [Goal(dict.fromkeys(columns, 1.0)), Goal({columns[0]: 1.0})]
    found = made.minimise(goals, time_limit_s=0.0)
    assert found is not None
    assert len(found.outcomes) == 1
    assert found.values.sum() == pytest.approx(5.0)


@examples(0.4)
@given(rows, weights, weights)
def test_hoping_changes_no_answer(
    demands: list[tuple[list[float], int]], first: list[float], last: list[float]
) -> None:
    """Whether the first goal can be 0 or not, trying that first ends at the same optimum."""
    goals = [Goal(dict(enumerate(first))), Goal(dict(enumerate([-each for each in last])))]
    hoped, plain = (
        program(demands).minimise(goals, time_limit_s=10.0, hopes=hopes) for hopes in (1, 0)
    )
    assert (hoped is None) == (plain is None)
    if hoped is not None and plain is not None:
        reached = [[each.value for each in found.outcomes] for found in (hoped, plain)]
        assert reached[0] == pytest.approx(reached[1], abs=1e-6)


def test_a_goal_may_stop_at_its_tolerance_and_says_how_far_it_may_be() -> None:
    """What is proven holds: the true optimum lies within the distance."""
    made = Program()
    columns = made.columns(40, upper=9, integer=True)
    shares = [1.0 + (7 * index % 11) / 10 for index in range(40)]
    for offset in range(5):
        made.row(zip(columns[offset::5].tolist(), shares, strict=False), low=17.3)
    costs = {int(column): 1.0 + (3 * index % 7) / 10 for index, column in enumerate(columns)}
    loose = made.minimise([Goal(costs, tolerance=0.5)], time_limit_s=10.0)
    tight = made.minimise([Goal(costs)], time_limit_s=10.0)
    assert loose is not None
    assert tight is not None
    (stopped,), (proven,) = loose.outcomes, tight.outcomes
    assert proven.distance == 0
    assert stopped.value - stopped.distance <= proven.value + 1e-6 <= stopped.value + 2e-6

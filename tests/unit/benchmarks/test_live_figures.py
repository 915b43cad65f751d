"""What the live comparison makes of two suites' answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.generative.live import _both, _compared, _side
from benchmarks.generative.live_suite import Answer

TIMES_S = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=80)


def answers(times_s: list[float], factor: float = 1.0) -> list[Answer]:
    return [Answer(n, each * factor / 2, each * factor, 9) for n, each in enumerate(times_s)]


@given(TIMES_S, st.floats(0.1, 2.0))
def test_what_takes_a_part_of_the_time_for_every_answer_is_told_so_without_doubt(
    times_s: list[float], factor: float
) -> None:
    found = _compared(answers(times_s), answers(times_s, factor))

    cut_pct = pytest.approx(100 * (1 - factor), abs=1e-6)
    assert [found[f"mean_cut{which}_pct"] for which in ("_low", "", "_high")] == [cut_pct] * 3
    ratios = ("p50_ratio", "p95_ratio", "p99_ratio", "first_token_ratio")
    assert [found[name] for name in ratios] == [pytest.approx(factor)] * 4


def test_only_what_both_answered_is_judged() -> None:
    fcfs: list[Answer | None] = [*answers([1.0] * 9)]
    ssjf = [*fcfs]
    fcfs[0] = fcfs[4] = ssjf[-1] = None

    judged = _both(zip(fcfs, ssjf, strict=True))

    assert [[each.due_s for each in side] for side in judged] == [[1, 2, 3, 5, 6, 7]] * 2


def test_a_slow_suite_favours_no_order_and_is_told() -> None:
    """The right suite takes a tenth longer, whichever way it serves; both orders are as good."""
    left, right = answers([1.0] * 9), answers([1.0] * 9, 1.1)
    turns = [[left, right], [right, left]]

    pairs = [[answer for turn in turns for answer in turn[which]] for which in range(2)]

    assert _side(turns)["right_slower_pct"] == pytest.approx(10)
    assert _compared(*pairs)["mean_cut_pct"] == pytest.approx(0, abs=1e-9)

"""What the live comparison makes of two suites' answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.generative.live import FIRST, _compared, _judged
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


def test_only_what_both_answered_is_judged_and_the_time_of_learning_apart() -> None:
    fcfs: list[Answer | None] = [*answers([1.0] * (3 * FIRST))]
    ssjf = [*fcfs]
    fcfs[0] = fcfs[FIRST + 1] = ssjf[-1] = None

    before, after = _judged([fcfs, ssjf])

    assert [len(each) for each in before] == [FIRST - 1] * 2
    assert [len(each) for each in after] == [2 * FIRST - 2] * 2
    assert [each.due_s for each in after[0]] == [each.due_s for each in after[1]]
    assert after[0][0].due_s == FIRST

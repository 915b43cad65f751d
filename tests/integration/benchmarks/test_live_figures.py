"""Figures that the live comparison makes of two suites' answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.generative.live import _both, _compared, _side, in_turn
from benchmarks.generative.live_suite import Answer

TIMES_S = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=80)


def answers(times_s: list[float], factor: float = 1.0) -> list[Answer]:
    return [Answer(n, each * factor / 2, each * factor, 9) for n, each in enumerate(times_s)]


@given(TIMES_S, st.floats(0.1, 2.0))
def test_what_takes_a_part_of_the_time_for_every_answer_is_found_without_doubt(
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


def test_a_slow_suite_favours_no_order_and_is_reported() -> None:
    """The right suite takes a tenth longer, whichever way it serves; both orders are as good."""
    left, right = answers([1.0] * 9), answers([1.0] * 9, 1.1)
    turns = [[left, right], [right, left]]

    pairs = [[answer for turn in turns for answer in turn[which]] for which in range(2)]

    assert _side(turns)["right_slower_pct"] == pytest.approx(10)
    assert _compared(*pairs)["mean_cut_pct"] == pytest.approx(0, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.1, 3.0)), min_size=1, max_size=30))
def test_in_turn_each_keeps_the_slot_as_long_as_it_did(jobs: list[tuple[float, float]]) -> None:
    """Served last come, first served, then replayed: as if they had been served in turn."""
    due = sorted(
        {round(due_s, 3) + n / 1e6: took_s for n, (due_s, took_s) in enumerate(jobs)}.items()
    )

    replayed = in_turn(served(due, newest_first=True))

    wanted = served(due, newest_first=False)
    assert [each.due_s for each in replayed] == [each.due_s for each in wanted]
    assert [each.last_s for each in replayed] == pytest.approx([each.last_s for each in wanted])
    assert [each.first_s for each in replayed] == pytest.approx([each.first_s for each in wanted])


def served(due: list[tuple[float, float]], *, newest_first: bool) -> list[Answer]:
    """Return the answers of a slot to requests (due at, keeps it for), in order of arrival."""
    waiting, found, free_s = [*due], list[Answer](), 0.0
    while waiting:
        free_s = max(free_s, waiting[0][0])
        here = [job for job in waiting if job[0] <= free_s]
        job = here[-1 if newest_first else 0]
        waiting.remove(job)
        due_s, took_s = job
        found.append(Answer(due_s, free_s - due_s + took_s / 4, free_s - due_s + took_s, 9))
        free_s += took_s
    return sorted(found, key=lambda each: each.due_s)

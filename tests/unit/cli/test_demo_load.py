"""The load generator's arithmetic: nothing sent is forgotten."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.local.demo.load import RequestStats, arrivals
from tests.support.examples import examples


@examples(0.4)
@given(st.floats(0.5, 200), st.floats(0.5, 20), st.integers(0, 2**31))
def test_arrivals_are_ordered_within_the_duration_and_repeatable(
    rate_rps: float, duration_s: float, seed: int
) -> None:
    load = arrivals({"one": rate_rps, "two": rate_rps}, duration_s, 719, seed)
    assert load == arrivals({"one": rate_rps, "two": rate_rps}, duration_s, 719, seed)
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(load))
    assert all(0 <= arrival.at_s < duration_s and 0 <= arrival.image < 719 for arrival in load)


def test_gaps_are_those_of_a_poisson_process() -> None:
    """Mean 1/rate and, unlike regular arrivals, a coefficient of variation of 1."""
    times_s = np.array([arrival.at_s for arrival in arrivals({"one": 50}, 1000, 719, seed=1)])
    gaps_s = np.diff(times_s)
    assert gaps_s.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, rel=0.02)


def test_other_seeds_give_other_arrivals() -> None:
    assert arrivals({"one": 10}, 10, 719, seed=1) != arrivals({"one": 10}, 10, 719, seed=2)


def test_each_model_gets_its_rate() -> None:
    counts = Counter(one.model for one in arrivals({"one": 30, "two": 90}, 1000, 719, seed=1))
    assert counts["one"] == pytest.approx(30_000, rel=0.03)
    assert counts["two"] == pytest.approx(90_000, rel=0.02)


def test_a_total_holds_what_each_model_was_sent() -> None:
    one, two = RequestStats(sent=1), RequestStats(sent=2)
    one.answer(0.1, correct=True)
    two.answer(0.3, correct=False)
    two.lose("timeout")
    total = RequestStats.total([one, two])
    assert (total.sent, total.answered, total.correct, total.lost) == (3, 2, 1, 1)
    assert total.quantile_s(50) == pytest.approx(0.2)
    assert one.answered == 1, "the parts stay as they are"


ENDS = st.lists(st.sampled_from(["right", "wrong", "lost", "open"]), max_size=50)


@given(ENDS)
def test_every_request_sent_is_answered_lost_or_open(ends: list[str]) -> None:
    stats = RequestStats()
    for end in ends:
        stats.sent += 1
        if end == "lost":
            stats.lose("UNAVAILABLE: gone")
        elif end != "open":
            stats.answer(0.1, correct=end == "right")
    assert stats.sent == stats.answered + stats.lost + ends.count("open")
    assert stats.lost == ends.count("lost")
    assert 0 <= stats.accuracy <= 1
    assert stats.correct == ends.count("right")


def test_quantiles_are_of_the_answered_only() -> None:
    stats = RequestStats(sent=101)
    stats.lose("timeout")
    for latency_ms in range(1, 101):
        stats.answer(latency_ms / 1e3, correct=True)
    assert stats.quantile_s(50) == pytest.approx(0.0505)
    assert stats.quantile_s(95) == pytest.approx(0.09505)
    assert RequestStats().quantile_s(95) == 0

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.core.cache.answer_lengths import AnswerLengths

TOKENS = st.integers(0, 100_000)


def after(*tokens: float) -> AnswerLengths:
    lengths = AnswerLengths.of(tokens[0])
    for each in tokens[1:]:
        lengths = lengths.updated(each)
    return lengths


@given(st.lists(TOKENS, min_size=1, max_size=30))
def test_the_mean_stays_among_what_was_seen_and_the_range_holds_it(tokens: list[int]) -> None:
    lengths = after(*tokens)

    low, high = lengths.range_tokens()
    assert min(tokens) - 1e-6 <= lengths.mean_tokens <= max(tokens) + 1e-6
    assert 0 <= low <= lengths.mean_tokens <= high


def test_of_like_answers_the_mean_is_their_mean() -> None:
    assert after(100, 110, 90, 100).mean_tokens == pytest.approx(100)
    assert after(100, 110, 90, 100).deviation_tokens == pytest.approx(7.07, abs=0.01)


def test_one_odd_answer_moves_the_mean_and_a_second_in_a_row_replaces_what_was_known() -> None:
    """A model that was exchanged is believed after two answers."""
    once = after(100, 100, 100, 1000)
    assert once.count == 4
    assert 100 < once.mean_tokens < 1000

    twice = once.updated(1000)
    assert twice == AnswerLengths.of(1000)


@given(st.lists(TOKENS, min_size=1, max_size=30), TOKENS)
def test_an_answer_cut_off_before_the_mean_says_nothing_and_one_beyond_it_that_it_was_longer(
    tokens: list[int], cut: int
) -> None:
    lengths = after(*tokens)
    updated = lengths.updated(cut, truncated=True)

    assert updated.mean_tokens >= lengths.mean_tokens
    if cut <= lengths.mean_tokens:
        assert updated == lengths


def test_odd_answers_that_are_not_in_a_row_replace_nothing() -> None:
    assert after(100, 100, 100, 100, 1000, 200, 1000, 300).count == 8

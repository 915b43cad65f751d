"""Lengths of whole and of truncated answers: Kaplan and Meier's estimator."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.core.length_histogram import TOKENS, LengthHistogram, kaplan_meier
from tests.support.examples import examples

COUNTS = st.lists(st.integers(0, 20).map(float), min_size=6, max_size=6).map(np.array)


def test_the_estimate_of_a_small_case_by_hand() -> None:
    """Ends at 1, 3, 4; cut off at 2 and 3: one in five, then 1/3 and all of what is left."""
    whole, truncated = np.array([1.0, 0, 1, 1]), np.array([0.0, 1, 1, 0])

    assert kaplan_meier(whole, truncated) == pytest.approx([0.2, 0, 0.8 / 3, 1.6 / 3])


@given(COUNTS.filter(np.any), COUNTS)
def test_it_is_a_distribution_and_whole_answers_alone_are_their_own(
    whole: np.ndarray, truncated: np.ndarray
) -> None:
    lengths = kaplan_meier(whole, truncated)

    assert lengths.sum() == pytest.approx(1)
    assert lengths.min() >= 0
    assert kaplan_meier(whole, np.zeros(6)) == pytest.approx(whole / whole.sum())


@examples(0.4)
@given(COUNTS.filter(np.any), COUNTS)
def test_cutting_answers_off_never_makes_them_shorter(
    whole: np.ndarray, truncated: np.ndarray
) -> None:
    """At each length, at least as many are longer as if the cut ones had ended there."""
    beyond = 1 - np.cumsum(kaplan_meier(whole, truncated))
    as_lengths = 1 - np.cumsum(kaplan_meier(whole + truncated, np.zeros(6)))

    assert (beyond >= as_lengths - 1e-9).all()


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=40), st.randoms())
def test_the_order_of_a_log_says_nothing(tokens: list[int], random: Random) -> None:
    shuffled = tokens.copy()
    random.shuffle(shuffled)
    none = [False] * len(tokens)

    one, other = LengthHistogram.of(tokens, none), LengthHistogram.of(shuffled, none)

    assert one.weights.tolist() == other.weights.tolist()
    assert one.weights.shape == (2, TOKENS.count)

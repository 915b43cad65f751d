"""Any text has features: bounded in number, the same every time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.predictor.core.features import (
    BUCKETS,
    HEAD_CHARACTERS,
    SHALLOW,
    TAIL_CHARACTERS,
    Features,
    bounded,
    features,
)

ANY_TEXT = st.text(st.characters(codec=None), max_size=300)  # lone surrogates included


def same(one: Features, other: Features) -> bool:
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (one.words.columns, other.words.columns),
        (one.words.counts, other.words.counts),
        (one.runs.columns, other.runs.columns),
        (one.shallow, other.shallow),
    ]
    return all(np.array_equal(a, b) for a, b in pairs)


@given(ANY_TEXT)
def test_any_text_has_finite_features_in_range(text: str) -> None:
    found = features(text)
    for grams in (found.words, found.runs):
        assert len(grams.columns) == len(grams.counts) == len(set(grams.columns.tolist()))
        assert ((grams.columns >= 0) & (grams.columns < BUCKETS)).all()
        assert (grams.counts >= 1).all()
    assert found.shallow.shape == (len(SHALLOW),)
    assert np.isfinite(found.shallow).all()
    assert same(found, features(text))


@pytest.mark.parametrize("text", ["\0" * 10**6, "word " * 200_000, "\U0001f600" * 250_000])
def test_a_megabyte_is_read_at_both_ends_only(text: str) -> None:
    """The number of n-grams is bounded, whatever the prompt's size."""
    assert len(bounded(text)) == HEAD_CHARACTERS + TAIL_CHARACTERS
    found = features(text)
    most = 4 * (HEAD_CHARACTERS + TAIL_CHARACTERS)
    assert len(found.runs.columns) <= 3 * most
    assert len(found.words.columns) <= 2 * most


def test_the_end_of_a_long_prompt_counts_and_its_middle_does_not() -> None:
    padding = "x" * HEAD_CHARACTERS
    end = "y" * TAIL_CHARACTERS
    assert same(features(padding + "middle" + end), features(padding + "muddle" + end))
    assert not same(
        features(padding + "middle" + end), features(padding + "middle" + end[1:] + "?")
    )


def test_words_do_not_depend_on_the_space_around_them() -> None:
    spread, plain = features("  Write\n\ta poem "), features("write a poem")
    assert np.array_equal(spread.words.columns, plain.words.columns)


def test_words_with_the_same_letters_in_another_order_differ() -> None:
    one, other = features("listen"), features("silent")
    assert not np.array_equal(one.words.columns, other.words.columns)


def test_what_occurs_often_counts_more_but_not_as_often() -> None:
    once, often = features("a").words.counts, features("a " * 50).words.counts
    assert once.max() < often.max() < 10


def test_nothing_has_no_grams() -> None:
    found = features(" \n ")
    assert len(found.words.columns) == 0
    assert features("").shallow[0] == 0

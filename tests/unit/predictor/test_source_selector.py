from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.predictor.core.source_selector import Rivals

CLASS = st.integers(0, 4)
TOLD = st.tuples(CLASS, CLASS, CLASS)


def after(told: list[tuple[int, int, int]]) -> Rivals:
    rivals = Rivals()
    for cache_class, model_class, true_class in told:
        rivals = rivals.then(
            cache_class=cache_class, model_class=model_class, true_class=true_class
        )
    return rivals


def test_like_prompts_lead_until_something_turns_out() -> None:
    assert Rivals().cache_leads


@given(st.lists(TOLD, max_size=100), st.booleans())
def test_whoever_is_right_for_long_leads_whatever_was_before(
    before: list[tuple[int, int, int]], cache_is_right: bool
) -> None:
    """Old answers fade: 400 on which one of them is right outweigh any others."""
    right = (2, 3, 2) if cache_is_right else (1, 2, 2)
    assert after(before + [right] * 400).cache_leads == cache_is_right


@given(st.lists(TOLD, min_size=1, max_size=64))
def test_the_first_answers_count_the_same(told: list[tuple[int, int, int]]) -> None:
    cache_off = sum(abs(cache - true) for cache, _, true in told)
    model_off = sum(abs(model - true) for _, model, true in told)
    if cache_off != model_off:
        assert after(told).cache_leads == (cache_off < model_off)

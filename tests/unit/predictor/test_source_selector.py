from hypothesis import given
from hypothesis import strategies as st

from services.predictor.core.source_selector import SourceSelector
from tests.support.examples import examples

CLASS = st.integers(0, 4)
ANSWER = st.tuples(CLASS, CLASS, CLASS)


def after(answers: list[tuple[int, int, int]]) -> SourceSelector:
    selector = SourceSelector()
    for cache_class, model_class, true_class in answers:
        selector = selector.updated(
            cache_class=cache_class, model_class=model_class, true_class=true_class
        )
    return selector


def test_similar_prompts_are_preferred_before_the_first_answer() -> None:
    assert SourceSelector().prefers_cache


@examples(0.4)
@given(st.lists(ANSWER, max_size=100), st.booleans())
def test_the_source_that_is_right_for_long_is_preferred_whatever_was_before(
    before: list[tuple[int, int, int]], cache_is_right: bool
) -> None:
    """Old answers fade: 400 on which one of them is right outweigh any others."""
    right = (2, 3, 2) if cache_is_right else (1, 2, 2)
    assert after(before + [right] * 400).prefers_cache == cache_is_right


@given(st.lists(ANSWER, min_size=1, max_size=64))
def test_the_first_answers_count_the_same(answers: list[tuple[int, int, int]]) -> None:
    cache_off = sum(abs(cache - true) for cache, _, true in answers)
    model_off = sum(abs(model - true) for _, model, true in answers)
    if cache_off != model_off:
        assert after(answers).prefers_cache == (cache_off < model_off)

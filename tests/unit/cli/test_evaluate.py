"""The questions of `cinquefoil eval`, and what is said of the answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.evaluate.items import CHOICES, MAKERS, Item, items, prompt
from services.cli.evaluate.run import Result


@pytest.mark.parametrize("seed", [0, 1])
def test_no_question_comes_twice_and_each_has_one_right_answer(seed: int) -> None:
    """A thousand questions, the maximum; all kinds in turn."""
    found = items(1000, seed)

    assert len({(each.question, tuple(sorted(each.choices))) for each in found}) == 1000
    assert all(len({*each.choices}) == CHOICES for each in found)
    assert all(each.chosen(f" {each.choices[each.right]}.\n") == each.right for each in found)
    assert found == items(1000, seed)
    assert found[: len(MAKERS)] != items(len(MAKERS), seed + 1)


def test_right_answers_are_at_every_place_alike() -> None:
    """A model that always names the first must not look able. 4 sigma of 1,000 draws."""
    places = [each.right for each in items(1000)]

    assert all(abs(places.count(at) - 250) < 55 for at in range(CHOICES))


@pytest.mark.parametrize(
    ("said", "chosen"),
    [(" Lima", 1), ("lima, of course", 1), ("\nRome", 0), ("Limassol", None), ("", None)],
)
def test_an_answer_is_the_choice_that_it_begins_with(said: str, chosen: int | None) -> None:
    item = Item("Where?", ("Rome", "Lima", "Paris", "Cairo"), 2)

    assert item.chosen(said) == chosen


def test_a_prompt_shows_solved_questions_and_ends_where_the_answer_begins() -> None:
    first, second = items(2)
    text = prompt(second, [first])

    assert text.startswith(f"Question: {first.question}")
    assert f"Answer: {first.choices[first.right]}\n" in text
    assert text.endswith("Answer:")


@given(st.integers(1, 1000), st.data())
def test_the_interval_holds_the_accuracy_and_narrows_with_more_questions(
    questions: int, data: st.DataObject
) -> None:
    right = data.draw(st.integers(0, questions))
    one = Result("v", questions, right, 0, 0)
    more = Result("v", 10 * questions, 10 * right, 0, 0)
    (low, high), (narrower_low, narrower_high) = one.interval, more.interval

    nothing = 1e-9  # floating point
    assert 0.0 <= low <= one.accuracy + nothing
    assert one.accuracy - nothing <= high <= 1.0
    assert narrower_high - narrower_low < high - low

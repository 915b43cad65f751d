"""Texts read out of scores of characters in steps (`--metric text`)."""

import numpy as np
import pytest

from services.cli.init import ctc
from services.kit.errors import InvalidArgument

ABC = ("a", "b", "c")


def steps(*classes: int, of: int = 5) -> dict[str, np.ndarray]:
    """Return an answer whose best class in each step is the given one."""
    return {"scores": np.eye(of, dtype="f4")[list(classes)]}


@pytest.mark.parametrize(
    ("classes", "text"),
    [((1, 1, 2), "ab"), ((1, 0, 1), "aa"), ((0, 0, 3, 3, 0, 4, 1), "c a"), ((0, 0), "")],
)
def test_repetitions_are_one_character_and_blanks_none(classes: tuple[int, ...], text: str) -> None:
    """A blank between two equal characters keeps both; the last class is the space."""
    assert ctc.text(steps(*classes), ABC) == text


def test_unnamed_characters_are_compared_by_their_class() -> None:
    """Equal paths are equal texts, others are not."""
    assert ctc.text(steps(1, 0, 2), ()) == ctc.text(steps(1, 1, 2), ())
    assert ctc.text(steps(1, 2), ()) != ctc.text(steps(2, 1), ())


def test_more_classes_than_characters_are_refused() -> None:
    """A file that names other characters than its answers have reads out nothing."""
    with pytest.raises(InvalidArgument, match="names 3 characters, and its answers have 9 classes"):
        ctc.text(steps(1, of=9), ABC)


def test_answers_with_texts_or_without_steps_are_left_as_they_are() -> None:
    assert ctc.text({"text": np.array("a", object), **steps(1)}, ABC) is None
    assert ctc.text({"probabilities": np.ones(5, "f4")}, ABC) is None


def test_names_of_characters_are_lines_of_the_metadata() -> None:
    assert ctc.characters_of({"character": "a\nb\nc\n"}) == ABC
    assert ctc.characters_of({}) == ()

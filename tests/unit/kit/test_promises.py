"""Promises in words."""

import pytest

from services.kit.promises import accuracy_promise

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("at_least", "over_s", "floor", "words"),
    [
        (0.98, 28 * DAY_S, 0.95, "98 % on average over 28 days, never below 95 %"),
        (0.985, DAY_S, 0.0, "98.5 % on average over 24 hours"),
        (1.0, 1.5 * DAY_S, 0.5, "100 % on average over 36 hours, never below 50 %"),
    ],
)
def test_a_mean_is_said_with_its_period_and_its_floor(
    at_least: float, over_s: float, floor: float, words: str
) -> None:
    """Whole days are days; a floor of 0 is none."""
    assert accuracy_promise(at_least, over_s, floor) == words

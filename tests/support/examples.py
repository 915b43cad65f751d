"""The number of cases that a test tries: a share of the number in the run's profile."""

from typing import Any

from hypothesis import settings


def examples(share: float, **other: Any) -> settings:
    """Return the settings of a property whose examples cost more or less than others'.

    Args:
        share: Examples for each of the profile, so that `--hypothesis-profile=thorough` reaches
            every property.
        other: Further settings.
    """
    return settings(max_examples=trials(share), **other)


def trials(share: float) -> int:
    """Return how many seeds, or samples of a known set, a test tries, >= 1.

    Args:
        share: Of the examples that the run's profile sets for a property.
    """
    return max(1, round(share * settings().max_examples))

"""How many examples a property is tried with: a share of what the run's profile asks for."""

from typing import Any

from hypothesis import settings


def examples(share: float, **other: Any) -> settings:
    """Return the settings of a property whose examples cost more or less than others'.

    Args:
        share: Examples for each of the profile, so that `--hypothesis-profile=thorough` reaches
            every property.
        other: Further settings.
    """
    return settings(max_examples=max(1, round(share * settings().max_examples)), **other)

"""Counts, rows of things and times in words."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

_SOON: Final = timedelta(minutes=10)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it is not one: "1 node", "2 nodes".

    Args:
        count: How many, >= 0.
        noun: In the singular; its plural ends in "s".
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Return names in a row: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def moment(when: datetime, now: datetime, day: str = "%Y-%m-%d") -> str:
    """Return a time to the minute, within ten minutes of now to the second.

    Args:
        when: The time.
        now: The present.
        day: Format of its day.
    """
    clock = "%H:%M:%S" if abs(when - now) < _SOON else "%H:%M"
    return f"{when:{day} {clock}}"

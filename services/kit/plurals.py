"""Counts and rows of things in words."""

from collections.abc import Sequence


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

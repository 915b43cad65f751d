"""Values by key: in lists, or added up."""

from collections.abc import Hashable, Iterable
from typing import Any, Protocol, Self, TypeVar


class Addable(Protocol):
    """A value that can be added to another of its type."""

    def __add__(self, other: Any, /) -> Self:
        """Return the sum."""
        ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
A = TypeVar("A", bound=Addable)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in order; keys in the order of their first value."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def summed(pairs: Iterable[tuple[K, A]]) -> dict[K, A]:
    """Return the sum of the values of each key; keys in the order of their first value."""
    found: dict[K, A] = {}
    for key, value in pairs:
        found[key] = found[key] + value if key in found else value
    return found

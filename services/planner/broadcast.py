"""One value, many readers: each gets the newest, and none can hold up the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Broadcast(Generic[T]):
    """The latest value of something that changes.

    A reader that is slow misses values in between, never the newest one.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    def publish(self, value: T) -> None:
        """Replace the value and wake all readers."""
        self._value = value
        self._wake()

    def close(self) -> None:
        """End all readers: the service drains."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[T]:
        """Yield the value, then the newest after each change, until the broadcast is closed."""
        while not self._closed:
            changed = self._changed  # before the value: a change while the reader works wakes it
            yield self._value
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

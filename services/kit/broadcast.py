"""One value, many readers: each gets the newest, and none can hold up the writer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Broadcast(Generic[T]):
    """The latest value of something that changes.

    A slow reader misses values in between, never the newest one. A value that is published should
    not change afterwards: readers may hold on to it.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def value(self) -> T:
        """The newest value."""
        return self._value

    @property
    def closed(self) -> bool:
        """True once no value will follow."""
        return self._closed

    def publish(self, value: T) -> None:
        """Replace the value and wake all readers; ignored once closed."""
        if not self._closed:
            self._value = value
            self._version += 1
            self._wake()

    def close(self) -> None:
        """End every reader after it has seen the newest value."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[T]:
        """Yield the value, then the newest after each change, until the broadcast is closed."""
        seen = -1
        while True:
            changed = self._changed  # before the value: a change while the reader works wakes it
            if seen != self._version:
                seen = self._version
                yield self._value
            elif self._closed:
                return
            else:
                await changed.wait()

    async def until(self, holds: Callable[[T], bool]) -> T:
        """Return the first value for which `holds(value)`, or the last one before the close."""
        async for value in self.follow():
            if holds(value):
                return value
        return self._value

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

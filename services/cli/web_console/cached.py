"""A value cached for all readers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """A value that is read on request, and kept for a while: readers that wait share one reading.

    Nothing is read while no page is open.
    """

    def __init__(
        self, read: Callable[[], Awaitable[T]], keep_s: float, clock: Callable[[], float]
    ) -> None:
        """Wrap a reading.

        Args:
            read: Reads the value; its errors are raised to the caller and not kept.
            keep_s: How long a value is kept, s.
            clock: Monotonic time, s.
        """
        self._read, self._keep_s, self._clock = read, keep_s, clock
        self._lock = asyncio.Lock()
        self._kept: tuple[float, T] | None = None
        self._forgotten = 0

    def forget(self) -> None:
        """Drop the value: the next reader reads it again."""
        self._kept = None
        self._forgotten += 1

    async def get(self) -> T:
        """Return the value, at most `keep_s` old."""
        async with self._lock:
            if self._kept is not None and self._clock() - self._kept[0] < self._keep_s:
                return self._kept[1]
            began_s, before = self._clock(), self._forgotten
            value = await self._read()
            self._kept = (began_s, value) if before == self._forgotten else None
            return value

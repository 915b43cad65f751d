"""A timer for many deadlines, most of which are never reached."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

TICK_S = 0.01
"""Maximum delay of an item, s."""


class DeadlineTimer(Generic[Item]):
    """Items by tick; the event loop has one timer per tick and not one per item.

    An item costs two dictionary accesses to add and two to drop; a dropped item holds no memory.

    Args:
        due: Called with each item that was not dropped, within a tick after its time.
    """

    def __init__(self, due: Callable[[Item], None]) -> None:
        self._due = due
        self._ticks: dict[int, dict[int, Item]] = {}

    def add(self, when_s: float, key: int, item: Item, now_s: float) -> None:
        """Schedule `due(item)`.

        Args:
            when_s: Earliest time of the call, monotonic s.
            key: Distinguishes the item from others of its tick.
            item: The item.
            now_s: Monotonic time, s.
        """
        tick = int(when_s / TICK_S) + 1
        items = self._ticks.get(tick)
        if items is None:
            items = self._ticks[tick] = {}
            asyncio.get_running_loop().call_later(tick * TICK_S - now_s, self._fire, tick)
        items[key] = item

    def drop(self, when_s: float, key: int) -> None:
        """Remove an item; nothing happens where it was due before, or never added."""
        items = self._ticks.get(int(when_s / TICK_S) + 1)
        if items is not None:
            items.pop(key, None)

    def _fire(self, tick: int) -> None:
        for item in self._ticks.pop(tick).values():
            self._due(item)

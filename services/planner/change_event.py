"""Event of changes of the cluster's state."""

import asyncio
import math
from collections.abc import Callable


class ChangeEvent:
    """Wakes all waiting tasks; each checks for itself what has changed.

    Attributes:
        count: Number of changes so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake every waiter after a change."""
        self.count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, seen: int, timeout_s: float = math.inf) -> None:
        """Wait until there were more than `seen` changes, at most `timeout_s`."""
        await self.until(lambda: self.count > seen, timeout_s)

    async def until(self, holds: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Wait until `holds()`, checking after each change; return whether it does.

        Args:
            holds: Condition to wait for.
            timeout_s: Longest wait, s.
        """
        try:
            async with asyncio.timeout(timeout_s if math.isfinite(timeout_s) else None):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return holds()
        return True

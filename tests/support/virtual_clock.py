"""A clock that moves only when a test moves it."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta


class VirtualClock:
    """Virtual time; stands for `services.kit.clock.Clock`."""

    def __init__(self, start: datetime) -> None:
        self._start = start.astimezone(UTC)
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._count = 0

    def now(self) -> datetime:
        """Return the virtual time, UTC."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        """Return virtual seconds since the start."""
        return self._elapsed_s

    async def sleep(self, delay_s: float) -> None:
        """Wait until `advance` has moved time far enough."""
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.Event()
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed_s + delay_s, self._count, wake))
        await wake.wait()

    async def advance(self, delay_s: float) -> None:
        """Move time forward, waking each sleeper at its instant and in order."""
        end_s = self._elapsed_s + delay_s
        while self._sleepers and self._sleepers[0][0] <= end_s:
            self._elapsed_s, _, wake = heapq.heappop(self._sleepers)
            wake.set()
            for _ in range(5):  # let what woke run, and sleep again, before time goes on
                await asyncio.sleep(0)
        self._elapsed_s = end_s
        await asyncio.sleep(0)

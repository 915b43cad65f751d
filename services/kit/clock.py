"""Time as an argument: the same code runs live, faster than life, and in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """Return the wall-clock time, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back, for intervals."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds of this clock."""
        ...


class RealClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the machine's time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic time, s."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait in real time."""
        await asyncio.sleep(delay_s)


class ScaledClock:
    """A clock that starts at `start` and runs `speedup` times as fast as the machine's."""

    def __init__(self, start: datetime, speedup: float) -> None:
        if speedup <= 0:
            raise ValueError(f"speedup must be > 0, got {speedup}")
        self._start = start.astimezone(UTC)
        self._speedup = speedup
        self._origin_s = time.monotonic()

    def now(self) -> datetime:
        """Return the scaled time, UTC."""
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        """Return scaled seconds since this clock was made."""
        return (time.monotonic() - self._origin_s) * self._speedup

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` scaled seconds."""
        await asyncio.sleep(max(delay_s, 0.0) / self._speedup)


class VirtualClock:
    """A clock that moves only when told: for tests and simulation."""

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

"""Time as an argument: the same code runs live and faster than real time."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Reads the time and waits."""

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

    monotonic = staticmethod(time.monotonic)

    def now(self) -> datetime:
        """Return the machine's time, UTC."""
        return datetime.now(UTC)

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

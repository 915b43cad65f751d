"""Pacing of work whose cost grows with the fleet."""

import asyncio
from collections import deque
from typing import Final

from services.kit.clock import Clock

_SHARE: Final = 0.2
_AT_ONCE_S: Final = 0.5
_MAX_PAUSE_S: Final = 0.5
_MOST_IN_A_TURN: Final = 32


class Pacing:
    """Limits work to a fifth of the time, or to once every half second.

    Some of it starts at once, so that a single change does not wait for the one before it. Time is
    the processor's, so that other processes' work does not lengthen the pauses.

    Args:
        clock: Source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed_s = 0.0
        self._since_s = clock.monotonic()

    def pause_s(self, spent_s: float) -> float:
        """Return the pause after work that took `spent_s` of the processor, s."""
        now_s = self._clock.monotonic()
        owed_s = max(0.0, self._owed_s - (now_s - self._since_s)) + spent_s / _SHARE
        self._owed_s, self._since_s = min(owed_s, _AT_ONCE_S + _MAX_PAUSE_S), now_s
        return max(0.0, self._owed_s - _AT_ONCE_S)


class Turns:
    """Spreads work of many callers over turns of the event loop.

    Each turn starts some of it, whatever else there is to do: a busy loop does not starve it, and
    it does not block the loop.

    Args:
        most: Number of pieces started per turn.
    """

    def __init__(self, most: int = _MOST_IN_A_TURN) -> None:
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait for the caller's turn, first come, first served."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._begin)
        await turn

    def _begin(self) -> None:
        for _ in range(min(self._most, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # the waiting caller may have gone
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)

"""How often work may be done that costs more the larger the fleet is."""

import asyncio
from collections import deque
from typing import Final

from services.kit.clock import Clock

_SHARE: Final = 0.2
_AT_ONCE_S: Final = 0.5
_MAX_PAUSE_S: Final = 0.5
_MOST_IN_A_TURN: Final = 32


class Pacing:
    """At most a fifth of the time is spent on the work, or it is done every half second.

    Some of it is done at once, though: a change that comes alone is not kept waiting by the one
    before it. Time is the processor's, so that other processes' work does not lengthen the pauses.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._owed_s = 0.0
        self._since_s = clock.monotonic()

    def pause_s(self, spent_s: float) -> float:
        """Return how long to pause after work that took `spent_s` of the processor, s."""
        now_s = self._clock.monotonic()
        owed_s = max(0.0, self._owed_s - (now_s - self._since_s)) + spent_s / _SHARE
        self._owed_s, self._since_s = min(owed_s, _AT_ONCE_S + _MAX_PAUSE_S), now_s
        return max(0.0, self._owed_s - _AT_ONCE_S)


class Turns:
    """Work that many callers bring at once is begun a little in each turn of the event loop.

    Whatever else there is to do in a turn, some of it is begun: a busy loop does not starve it,
    and it does not hold up the loop.

    Args:
        most: How much is begun in a turn.
    """

    def __init__(self, most: int = _MOST_IN_A_TURN) -> None:
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Return when it is the caller's turn: the first who came is the first."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._begin)
        await turn

    def _begin(self) -> None:
        for _ in range(min(self._most, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waited may have gone
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)

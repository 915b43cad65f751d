"""Turns at the event loop: no connection reads frames for longer than all others can wait."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_SLICE_S: Final = 0.002
_TURN_S: Final = 0.005
CALL_S: Final = 50e-6
"""Time that a call takes beside its frames, as it is counted, s."""


class Turns:
    """Processor time for reading frames, shared out among the connections of a server.

    In one turn of the loop a connection reads frames for two milliseconds, all together for five;
    what is left waits. Callers have turns one after another, and the connections of a caller, so
    that a caller with many connections, or with frames that cost most, is no faster than others.

    Attributes:
        waiting: Connections that wait, by caller.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, deque[Callable[[], None]]] = {}
        self._spent_s = 0.0
        self._since_s = 0.0
        self._next: asyncio.Handle | None = None

    def slice_s(self) -> float:
        """Return the time that a connection may read for now, s."""
        now_s = time.perf_counter()
        if self._next is None and now_s - self._since_s > _TURN_S:
            self._since_s, self._spent_s = now_s, 0.0
        return min(_SLICE_S, _TURN_S - self._spent_s)

    def spend(self, took_s: float, calls: int) -> None:
        """Count the time that frames took, and what the calls that they began will take."""
        self._spent_s += took_s + calls * CALL_S

    def wait(self, caller: str, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is a caller's turn."""
        self.waiting.setdefault(caller, deque()).append(go_on)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._spent_s, self._next = 0.0, None
        try:
            for _ in range(sum(map(len, self.waiting.values()))):
                self._pop()()
                if self._spent_s > _TURN_S:
                    break
        finally:
            if self.waiting and self._next is None:
                self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _pop(self) -> Callable[[], None]:
        caller = next(iter(self.waiting))
        queue = self.waiting.pop(caller)
        go_on = queue.popleft()
        if queue:
            self.waiting[caller] = queue  # behind the others
        return go_on

"""Admission of one model's lines: as many as the router takes, when the planner releases them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from services.batch.adapters.router_client import Answer
from services.batch.core.admission import Admission
from services.batch.core.releases import Releases
from services.kit.clock import Clock

_LOOK_S: Final = 0.5
_CALL_LINES: Final = 16
"""Lines that a call has at least, where so many are left."""


class Gate:
    """Admission of one model's lines, and who waits for it.

    Args:
        model: The model.
        admission: Decides how many are with the router.
        releases: Decides when.
        clock: Time.
    """

    def __init__(self, model: str, admission: Admission, releases: Releases, clock: Clock) -> None:
        self._model, self._admission, self._releases = model, admission, releases
        self._clock, self._now_s = clock, clock.monotonic
        self._changed = asyncio.Event()
        self._waiting = Counter[datetime]()

    def wants(self, due: datetime) -> int:
        """Return the lines due at a time that could be sent at once beyond those that wait here."""
        free = self._admission.free(self._now_s()) - self._ahead(due, with_it=True)
        return free if free <= 0 or self._released(due) else 0

    def _ahead(self, due: datetime, *, with_it: bool = False) -> int:
        """Return the lines that wait here and are due before a time."""
        return sum(
            count for at, count in self._waiting.items() if at < due or (with_it and at == due)
        )

    @property
    def in_flight(self) -> int:
        """Lines that are with the router."""
        return self._admission.in_flight

    async def enter(self, wanted: int, due: datetime, over: Callable[[], bool]) -> int:
        """Wait until some more lines may be sent, and count them; return how many.

        Not for a few where many are wanted: each call costs, too. The earliest deadline goes first.

        Args:
            wanted: How many may be sent.
            due: When they are due.
            over: Whether there is nothing to wait for any more; called at each change.
        """
        self._waiting[due] += wanted
        try:
            while not (free := self._free(wanted, due)):
                if over():
                    return 0
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self._changed.wait()
            if over():
                return 0
            self._admission.in_flight += free
            self._releases.sent(self._model, due, free, self._clock.now(), self._now_s())
            return free
        finally:
            self._waiting[due] -= wanted
            if not self._waiting[due]:
                del self._waiting[due]

    def _free(self, wanted: int, due: datetime) -> int:
        free = self._admission.free(self._now_s()) - self._ahead(due)
        free = max(min(free, wanted, self._released(due)), 0)
        return free if free >= min(wanted, _CALL_LINES) or not self._admission.in_flight else 0

    def _released(self, due: datetime) -> int:
        """Return the lines due at a time that the planner lets be sent now."""
        return self._releases.allowed(self._model, due, self._clock.now(), self._now_s())

    def _pause_s(self) -> float:
        """Return the time until the next look, s."""
        resumes_s = self._admission.resumes_s - self._now_s()
        if resumes_s > 0:
            return max(resumes_s, 0.01)
        if self._admission.free(self._now_s()):
            return min(self._releases.wait_s(self._model, self._clock.now()), _LOOK_S)
        return _LOOK_S

    def leave(self, answer: Answer, took_s: float) -> None:
        """Count an answer that came after a time, s."""
        self._admission.in_flight -= 1
        if answer.retry_after_s is None:
            self._admission.answered(answer.waited_s, took_s)
        else:
            self._admission.refused(self._now_s(), answer.retry_after_s)
        self._changed.set()

    def abandon(self, count: int) -> None:
        """Count lines out whose answers nothing waits for any more."""
        self._admission.in_flight -= count
        self._changed.set()

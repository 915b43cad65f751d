"""Secondary requests: rate-limited, and suspended after a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from services.carbon.core.sources.provider import SourceFailed
from services.kit.telemetry import logs

_log = logs.get("carbon.sources")
_REFUSED_FOR = timedelta(days=1)


class Throttle:
    """Sends a request at most once per `every`, and after a refusal not for a day.

    Args:
        every: Minimum interval.
        enabled: False: requests are never sent.
    """

    def __init__(self, every: timedelta, *, enabled: bool = True) -> None:
        self._every = every
        self._enabled = enabled
        self._next: datetime | None = None

    async def send(
        self, now: datetime, request: Callable[[], Awaitable[bytes | None]], *, early: bool = False
    ) -> bytes | None:
        """Return the answer; None: not due, not modified, or refused.

        Args:
            now: The time.
            request: Sends the request.
            early: Send it before it is due, unless it was refused.

        Raises:
            SourceFailed: The request failed for another reason than a refusal.
        """
        refused = self._next is not None and self._next - now > self._every
        due = self._next is None or now >= self._next
        if not self._enabled or refused or not (due or early):
            return None
        try:
            answer = await request()
        except SourceFailed as error:
            if error.kind != "refused":
                raise
            _log.info("not covered by this account", request=str(error))
            self._next = now + _REFUSED_FOR
            return None
        self._next = now + self._every
        return answer

"""Questions beside the main one: seldom asked, and not again where the account is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from services.carbon.core.sources.provider import SourceFailed
from services.carbon.sources.live.http import NotModified
from services.kit.telemetry import logs

_log = logs.get("carbon.sources")
_REFUSED_FOR = timedelta(days=1)


class Allowed:
    """Asks at most once per `every`, and after a refusal not for a day.

    Args:
        every: How often.
        wanted: False: never.
    """

    def __init__(self, every: timedelta, *, wanted: bool = True) -> None:
        self._every = every
        self._wanted = wanted
        self._next: datetime | None = None

    async def ask(
        self, now: datetime, question: Callable[[], Awaitable[bytes]], *, anyway: bool = False
    ) -> bytes | None:
        """Return the answer; None where it is not the time, nothing is new, or it was refused.

        Args:
            now: Grid time.
            question: What to ask.
            anyway: It is wanted before its time; a refusal holds all the same.

        Raises:
            SourceFailed: There was none, for another reason than a refusal.
        """
        refused = self._next is not None and self._next - now > self._every
        due = self._next is None or now >= self._next
        if not self._wanted or refused or not (due or anyway):
            return None
        try:
            answer = await question()
        except NotModified:
            answer = None
        except SourceFailed as error:
            if error.kind != "refused":
                raise
            _log.info("not covered by this account", question=str(error))
            self._next = now + _REFUSED_FOR
            return None
        self._next = now + self._every
        return answer

"""Leadership of this planner: its lease is renewed, and it acts only while it is valid."""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, Final

from services.kit.clock import Clock
from services.kit.errors import InvalidArgument, Unavailable
from services.kit.telemetry import logs
from services.kit.terms import MOST_TERMS_AHEAD
from services.planner.adapters.store import Deposed, Store
from services.planner.core.lease import EXPIRES_S, RENEW_S

_log = logs.get("leadership")

_LEAST_TURNS: Final = 50
"""Turns of the loop without an answer after which the database counts as lost."""


class Leading:
    """Keeps the lease of a planner that leads.

    Args:
        store: Store with the lease.
        clock: Source of time.
        steps_down: Whether this planner gives way when it can neither renew in time nor read that
            the lease is still its own, because another may stand by. Else it waits until it can.
    """

    def __init__(self, store: Store, clock: Clock, *, steps_down: bool) -> None:
        self._store = store
        self._clock = clock
        self._steps_down = steps_down
        self._renewed = asyncio.Event()

    async def keep(self) -> None:
        """Renew the lease for ever.

        With a full disk the database still shows that no other planner has led since: this one does
        not act (`may_act`), but keeps announcing what is stored.

        Raises:
            Deposed: Another planner leads, or may soon.
        """
        well = True
        while True:
            await self._clock.sleep(RENEW_S)
            requested_s = self._clock.monotonic()
            try:
                limit_s = self._left_s() or RENEW_S
                await _within(limit_s if self._steps_down else math.inf, self._store.renew())
            except Deposed:
                raise
            except (TimeoutError, Unavailable) as error:
                if well:
                    _log.warning(
                        "the lease was not renewed", error=str(error) or "no answer in time"
                    )
                well = False
                if self._steps_down and not self._left_s() and not await self._is_stored():
                    raise Deposed("the lease was not renewed in time") from error
            else:
                well = True
                self._store.leadership.tenure.renewed(requested_s)
                self._renewed.set()
                self._renewed.clear()

    def check(self, term: int) -> None:
        """Check the term that an agent knows.

        Raises:
            InvalidArgument: No restored database is so far behind: no terms would be left.
        """
        known = self._store.leadership.lease.term
        if term > known + MOST_TERMS_AHEAD:
            raise InvalidArgument.at(
                "term", f"must be at most {MOST_TERMS_AHEAD:,} above {known}, got {term}"
            )

    async def raise_to(self, term: int) -> None:
        """Lead in a term of at least `term`, which was checked: agents refuse those of lower ones.

        Raises:
            Unavailable: The database is away.
        """
        if term > self._store.leadership.lease.term:
            _log.warning("agents know a higher term: was the database restored?", term=term)
            await self._store.renew(at_least=term + 1)

    async def may_act(self) -> None:
        """Wait until the lease is valid, so that no other planner acts."""
        while not self._left_s():
            await self._renewed.wait()

    async def _is_stored(self) -> bool:
        """Return whether the database can be read, and holds this planner's lease.

        Raises:
            Deposed: It holds another planner's.
        """
        try:
            await _within(EXPIRES_S, self._store.check_lease())
        except Deposed:
            raise
        except (TimeoutError, Unavailable):
            return False
        return True

    def _left_s(self) -> float:
        return self._store.leadership.tenure.lasts_s(self._clock.monotonic())


async def _within(limit_s: float, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` within a time and a number of loop turns: a blocked loop lets only time pass.

    Raises:
        TimeoutError: It is not done.
    """
    doing = asyncio.create_task(work, name="planner.lease")
    try:
        for _ in range(_LEAST_TURNS):
            done, _waiting = await asyncio.wait(
                {doing}, timeout=None if math.isinf(limit_s) else limit_s / _LEAST_TURNS
            )
            if done:
                return await doing
    finally:
        doing.cancel()
    raise TimeoutError

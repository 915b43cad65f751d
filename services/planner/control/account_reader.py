"""Reads the account's hours, day by day: years of them never stand in memory at once."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Final

from services.kit.clock import Clock
from services.kit.errors import InvalidArgument
from services.planner.adapters.store import Store
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.core.accounting.entries import HOUR, EntryKey, Figures, Grouping, hour_of

_STRETCH: Final = timedelta(days=1)


class AccountReader:
    """The account by hour, with all that was drawn up to now."""

    def __init__(self, store: Store, account_writer: AccountingWriter, clock: Clock) -> None:
        self._store = store
        self._account_writer = account_writer
        self._clock = clock

    async def read(
        self, since: datetime | None, until: datetime | None, by: Grouping
    ) -> AsyncIterator[list[tuple[EntryKey, Figures]]]:
        """Yield entries in order of hour, a day's at a time.

        Args:
            since: In the first hour; None: the oldest that is kept.
            until: In the last hour, or at its end; None: now.
            by: What the entries of an hour are added up by.

        Raises:
            InvalidArgument: `until` is not after `since`.
            Unavailable: The database is away.
        """
        now = self._clock.now()
        if since is not None and (until or now) <= since:
            raise InvalidArgument(
                f"until: must be after since ({since:%Y-%m-%d %H:%M} UTC), "
                f"got {until or now:%Y-%m-%d %H:%M}",
                field="until",
            )
        await self._account_writer.save()
        oldest = await self._store.pages.oldest()
        if oldest is None:
            return
        start = max(oldest, hour_of(since or oldest))
        end = hour_of(min(until or now, now) + HOUR - timedelta(microseconds=1))
        while start < end:
            following = min(start + _STRETCH, end)
            yield await self._store.pages.read(start, following, by)
            start = following

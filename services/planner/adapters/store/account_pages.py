"""The fleet's account in the database: pages are added, hours are read as sums."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

from sqlalchemy import Table, cast, delete, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.planner.v1.records import Outcome
from services.kit.database.connection import Rejected, SharedConnection, uncancellable
from services.planner.adapters.store import rows
from services.planner.adapters.store.tables import (
    account_hours,
    account_regions,
    insert_into,
    put,
    put_outcome,
    value_of,
)
from services.planner.core.accounting.account import Account
from services.planner.core.accounting.accountant import Page
from services.planner.core.accounting.entries import NAMES, EntryKey, Figures, Grouping, values
from services.planner.core.accounting.moved import Moved, MovedKey

_KEY: Final = EntryKey._fields
_COLUMNS: Final[Mapping[Grouping, tuple[str, ...]]] = {
    "": ("zone", "node", "model"),
    "model": ("model",),
    "node": ("zone", "node"),
    "zone": ("zone",),
    "region": ("model",),  # split afterwards, by `moved`
}
_MOVED: Final = ("requests", "energy_j", "carbon_gco2e")
_MOVED_VALUES: Final = attrgetter(*_MOVED)

K = TypeVar("K", bound=tuple[Any, ...])
V = TypeVar("V")


class AccountPages:
    """Pages of the account. Every method may raise Unavailable: the database is away.

    Attributes:
        connection: The connection to the database.
    """

    def __init__(self, connection: SharedConnection) -> None:
        self.connection = connection
        self._encode = rows.AccountEncoder()

    @uncancellable
    async def account(self) -> Account:
        """Return the account as last written; an empty one if there is none."""
        async with self.connection.transaction() as connection:
            value = await value_of(connection, "account")
        return Account() if value is None else rows.account_of(value)

    @uncancellable
    async def save(
        self, page: Page, version: int, outcome: Outcome, keep_from: datetime | None = None
    ) -> None:
        """Write a page, and the outcome of a plan, together.

        Writing is idempotent: a caller that cannot know whether a page was written, because the
        connection broke during the commit, writes the page again.

        Args:
            page: Page of the account.
            version: Version of the plan; 0: none.
            outcome: Outcome of the plan.
            keep_from: Delete earlier hours; None: none.

        Raises:
            Rejected: A figure is not finite, or too large for its column: it would spoil every sum
                that it is in.
        """
        numbers = [outcome.energy_j, outcome.carbon_gco2e, *outcome.latency_s.values()]
        numbers += (value for figures in page.entries.values() for value in values(figures))
        numbers += (value for each in page.moved.values() for value in _MOVED_VALUES(each))
        if not all(map(math.isfinite, numbers)):
            raise Rejected("planner.database: a figure of the account is not finite")
        account = self._encode(page.account)  # before others wait for the connection
        async with self.connection.transaction() as connection:
            written = json.loads(await value_of(connection, "page") or "0")
            if written >= page.account.page:
                return
            if version:
                await put_outcome(connection, version, outcome)
            await _add(connection, account_hours, NAMES, page.entries, values)
            await _add(connection, account_regions, _MOVED, page.moved, _MOVED_VALUES)
            for table in (account_hours, account_regions) if keep_from is not None else ():
                await connection.execute(delete(table).where(table.c.hour < keep_from))
            await put(connection, "account", account)
            await put(connection, "page", json.dumps(page.account.page).encode())

    @uncancellable
    async def oldest(self) -> datetime | None:
        """Return the oldest hour that is kept, if any."""
        async with self.connection.transaction() as connection:
            hour: datetime | None = await connection.scalar(select(func.min(account_hours.c.hour)))
        return hour

    @uncancellable
    async def read(
        self, since: datetime, until: datetime, by: Grouping = ""
    ) -> list[tuple[EntryKey, Figures]]:
        """Return the entries of the hours from `since` up to `until`, in order of keys.

        Args:
            since: The first hour.
            until: The hour after the last.
            by: Column by which the entries of an hour are summed. Tokens have no zone and node, and
                are left out where these are the columns.
        """
        columns = [account_hours.c[name] for name in ("hour", *_COLUMNS[by])]
        key = [
            account_hours.c[name] if name in ("hour", *_COLUMNS[by]) else literal("").label(name)
            for name in _KEY
        ]
        figures = [account_hours.c[name] for name in NAMES]
        query = (
            select(*key, *(cast(func.sum(column), column.type) for column in figures))
            .where(account_hours.c.hour >= since, account_hours.c.hour < until)
            .group_by(*columns)
            .order_by(*columns)
        )
        if by in ("node", "zone"):
            query = query.where(account_hours.c.node != "")
        async with self.connection.transaction() as connection:
            found = (await connection.execute(query)).all()
        return [(EntryKey(*row[: len(_KEY)]), Figures(*row[len(_KEY) :])) for row in found]

    @uncancellable
    async def moved(self, since: datetime, until: datetime) -> dict[MovedKey, Moved]:
        """Return the requests between regions in the hours from `since` up to `until`."""
        hour = account_regions.c.hour
        query = select(*(account_regions.c[name] for name in (*MovedKey._fields, *_MOVED)))
        async with self.connection.transaction() as connection:
            found = await connection.execute(query.where(hour >= since, hour < until))
            return {MovedKey(*row[:4]): Moved(*row[4:]) for row in found}


async def _add(
    connection: AsyncConnection,
    table: Table,
    names: Sequence[str],
    entries: Mapping[K, V],
    figures_of: Callable[[V], Iterable[float]],
) -> None:
    """Add entries to those already written.

    Args:
        connection: To the database.
        table: Their table.
        names: Columns that add up; all others are the key.
        entries: By key.
        figures_of: Returns the values of `names`.
    """
    if not entries:
        return
    insert = insert_into(connection, table)
    grown = {name: table.c[name] + insert.excluded[name] for name in names}
    key_names = [column.name for column in table.primary_key]
    await connection.execute(
        insert.on_conflict_do_update(index_elements=key_names, set_=grown),
        [
            dict(zip((*key_names, *names), (*key, *figures_of(figures)), strict=True))
            for key, figures in sorted(entries.items(), key=lambda entry: entry[0])
        ],
    )

"""Base of what reads and writes the database: a transaction of the shared connection."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import Select, and_, or_, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from services.kit.clock import Clock
from services.kit.database.connection import Rejected, SharedConnection
from services.kit.errors import InvalidArgument

HOLD_S: Final = 30.0
"""Time for which a piece or a batch is held; renewed three times within it."""


class StoreBase:
    """Transactions of one service.

    Args:
        connection: To the database.
        clock: Wall time.

    Attributes:
        holder: Name under which this service holds pieces and batches.
    """

    def __init__(self, connection: SharedConnection, clock: Clock) -> None:
        self.connection = connection
        self._clock = clock
        self.holder = secrets.token_hex(8)

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self.connection.transaction() as connection:
                yield connection
        except Rejected as error:  # such as a NUL, in PostgreSQL
            raise InvalidArgument(str(error)) from None

    async def _page(
        self, wanted: Select[Any], table: Any, after: str, limit: int
    ) -> Sequence[RowMapping]:
        if after:
            last = select(table.c.created_s).where(table.c.id == after).scalar_subquery()
            wanted = wanted.where(
                or_(
                    table.c.created_s < last,
                    and_(table.c.created_s == last, table.c.id < after),
                )
            )
        wanted = wanted.order_by(table.c.created_s.desc(), table.c.id.desc()).limit(limit)
        async with self._transaction() as connection:
            rows: Sequence[RowMapping] = (await connection.execute(wanted)).mappings().all()
            return rows

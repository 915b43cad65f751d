"""Durable state: files, batches, pieces of input that wait, and results, one for each line.

A piece is held by one batch service at a time, for a while; what a killed one held is free again
then. Its lines leave the table in the transaction that writes their results, so that none is lost;
a line that was answered twice keeps its first result, so that none is doubled.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from services.batch.adapters.store.base import HOLD_S
from services.batch.adapters.store.stored_batches import StoredBatches
from services.batch.adapters.store.stored_files import StoredFiles
from services.batch.adapters.store.stored_lines import StoredLines
from services.batch.adapters.store.tables import VERSION, batches, metadata, pieces, schema
from services.kit.clock import Clock
from services.kit.database.address import address, shown
from services.kit.database.connection import SharedConnection, uncancellable
from services.kit.errors import FailedPrecondition
from services.kit.lock_file import LockFile

SETTING: Final = "batch.database"

_REMEDY: Final = "move it away to begin with an empty one, or put a backup back"


class Store(StoredFiles, StoredBatches, StoredLines):
    """The database."""

    @classmethod
    @asynccontextmanager
    async def opened(cls, database: Path | str, clock: Clock) -> AsyncIterator["Store"]:
        """Open the database while the block runs; tables are made where needed.

        Args:
            database: `batch.database`.
            clock: Wall time.

        Raises:
            InvalidArgument: The URL cannot be.
            FailedPrecondition: Another service has the SQLite file, or the schema is another.
            Unavailable: It cannot be reached.
        """
        url = address(database, SETTING)
        own = url.get_backend_name() == "sqlite"
        async with AsyncExitStack() as held:
            if own:
                path = Path(url.database or "")
                lock = held.enter_context(LockFile(Path(f"{path}.lock"), SETTING))
                if not lock.take():
                    raise FailedPrecondition(
                        f"{SETTING}: another batch service is using {path}: {lock.holder()}; "
                        "several share a PostgreSQL database"
                    )

            async def prepare(connection: AsyncConnection) -> None:
                async with connection.begin():
                    await connection.run_sync(metadata.create_all)
                    found = (await connection.execute(select(schema.c.version))).scalar()
                    if found is None:
                        await connection.execute(insert(schema).values(version=VERSION))
                    elif found != VERSION:
                        raise FailedPrecondition(
                            f"{SETTING}: {shown(url)} has schema {found}, this version knows "
                            f"{VERSION}"
                        )
                    if own:  # no other service can hold anything
                        for table in (pieces, batches):
                            await connection.execute(update(table).values(held_until_s=0.0))

            async def unchecked(_: AsyncConnection) -> None:
                """Leave every transaction to the holds of its rows."""

            shared = await held.enter_async_context(
                SharedConnection.opened(url, prepare, unchecked, setting=SETTING, remedy=_REMEDY)
            )
            yield cls(shared, clock)

    @uncancellable
    async def renew(self) -> None:
        """Hold everything that this service holds for longer."""
        until_s = self._now_s() + HOLD_S
        async with self._transaction() as connection:
            for table in (pieces, batches):
                await connection.execute(
                    update(table)
                    .where(table.c.holder == self.holder, table.c.held_until_s > 0)
                    .values(held_until_s=until_s)
                )

    @uncancellable
    async def let_go(self) -> None:
        """Hold nothing any more, so that others need not wait."""
        async with self._transaction() as connection:
            for table in (pieces, batches):
                await connection.execute(
                    update(table)
                    .where(table.c.holder == self.holder)
                    .values(holder="", held_until_s=0.0)
                )

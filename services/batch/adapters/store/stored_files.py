"""Files in the database; their contents are elsewhere."""

import math

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.batch.v1.records import File
from services.batch.adapters.store import rows
from services.batch.adapters.store.base import StoreBase
from services.batch.adapters.store.tables import batches, files
from services.kit.database.connection import uncancellable
from services.kit.errors import FailedPrecondition, NotFound, ResourceExhausted
from services.kit.units import BYTES_PER_MIB


class StoredFiles(StoreBase):
    """Files, by owner."""

    @uncancellable
    async def add_file(self, file: File, most_bytes: float = math.inf) -> None:
        """Note a file whose content is stored.

        Raises:
            ResourceExhausted: The owner's files would be larger than `most_bytes` together.
        """
        async with self._transaction() as connection:
            if most_bytes < math.inf:
                whole = await _stored_bytes(connection, file.owner) + file.size_bytes
                if whole > most_bytes:
                    raise too_many_bytes(whole, most_bytes)
            await connection.execute(insert(files).values(**rows.file_row(file)))

    @uncancellable
    async def file(self, id_: str, owner: str | None) -> File:
        """Return a file.

        Args:
            id_: Its id.
            owner: Who must own it; None: anybody.

        Raises:
            NotFound: There is none.
        """
        async with self._transaction() as connection:
            row = (
                (await connection.execute(select(files).where(files.c.id == id_)))
                .mappings()
                .one_or_none()
            )
        if row is None or owner not in (None, row["owner"]):
            raise NotFound(f"no file {id_[:80]!r}", reason="NO_SUCH_FILE")
        return rows.file(row)

    @uncancellable
    async def list_files(
        self, owner: str, *, purpose: str = "", after: str = "", limit: int
    ) -> list[File]:
        """Return at most `limit` files of an owner, newest first, from the one after `after`."""
        wanted = select(files).where(files.c.owner == owner)
        if purpose:
            wanted = wanted.where(files.c.purpose == purpose)
        return [rows.file(row) for row in await self._page(wanted, files, after, limit)]

    @uncancellable
    async def delete_file(self, id_: str, owner: str) -> File:
        """Forget a file; its content is the caller's to delete.

        Raises:
            NotFound: The owner has no such file.
            FailedPrecondition: A batch that has not ended reads it.
        """
        file = await self.file(id_, owner)
        async with self._transaction() as connection:
            reading = await connection.scalar(
                select(batches.c.id).where(
                    batches.c.input_file_id == id_, batches.c.state.in_(rows.OPEN)
                )
            )
            if reading:
                raise FailedPrecondition(f"{id_}: batch {reading} reads it; cancel that first")
            await connection.execute(delete(files).where(files.c.id == id_))
        return file

    @uncancellable
    async def expired_files(self, limit: int) -> list[File]:
        """Forget files whose time is over and that no batch reads; return them."""
        reading = select(batches.c.input_file_id).where(batches.c.state.in_(rows.OPEN))
        over = (
            select(files.c.id)
            .where(files.c.expires_s < self._now_s(), files.c.id.not_in(reading))
            .limit(limit)
        )
        async with self._transaction() as connection:
            gone = delete(files).where(files.c.id.in_(over)).returning(*files.c)
            return [rows.file(row) for row in (await connection.execute(gone)).mappings()]

    @uncancellable
    async def stored_bytes(self, owner: str) -> int:
        """Return the size of an owner's files together."""
        async with self._transaction() as connection:
            return await _stored_bytes(connection, owner)


async def _stored_bytes(connection: AsyncConnection, owner: str) -> int:
    wanted = select(func.coalesce(func.sum(files.c.size_bytes), 0)).where(files.c.owner == owner)
    return int((await connection.execute(wanted)).scalar_one())


def too_many_bytes(have: float, most: float) -> ResourceExhausted:
    """Return the error of a file for which its owner has no room.

    Args:
        have: Size of the owner's files with it, bytes.
        most: Size that they may have, bytes.
    """
    return ResourceExhausted(
        f"your files would have {have / BYTES_PER_MIB:.0f} MiB; batch.max_stored_mib allows "
        f"{most / BYTES_PER_MIB:.0f}",
        reason="TOO_MANY_BYTES",
    )

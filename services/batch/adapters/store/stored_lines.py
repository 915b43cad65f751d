"""Pieces of input that wait, and results: one for each line."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, and_, delete, false, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from services.batch.adapters.store import rows
from services.batch.adapters.store.base import HOLD_S, StoreBase
from services.batch.adapters.store.rows import Piece, Result
from services.batch.adapters.store.tables import batches, pieces, results
from services.kit.database.connection import uncancellable


class StoredLines(StoreBase):
    """Lines of batches: a piece leaves in the transaction that writes its last result."""

    @uncancellable
    async def cut(self, found: Sequence[Piece], faulty: Sequence[Result]) -> None:
        """Write pieces of a batch, and the results of lines that cannot be answered."""
        async with self._transaction() as connection:
            if found:
                await connection.execute(insert(pieces), [rows.piece_row(each) for each in found])
            if faulty:
                await self._write(connection, faulty)

    @uncancellable
    async def uncut(self, batch_id: str) -> None:
        """Forget what an earlier reading of a batch's input has written."""
        async with self._transaction() as connection:
            for table in (pieces, results):
                await connection.execute(delete(table).where(table.c.batch_id == batch_id))
            await connection.execute(
                update(batches).where(batches.c.id == batch_id).values(completed=0, failed=0)
            )

    @uncancellable
    async def claim(self, batch_id: str, limit: int) -> dict[Piece, set[int]]:
        """Hold the next free pieces of a batch, at most `limit`.

        Returns:
            The pieces in order, each with its lines that have a result.
        """
        now_s = self._now_s()
        free = (
            select(pieces.c.number)
            .where(pieces.c.batch_id == batch_id, pieces.c.held_until_s < now_s)
            .order_by(pieces.c.number)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        change = (
            update(pieces)
            .where(pieces.c.batch_id == batch_id, pieces.c.number.in_(free.scalar_subquery()))
            .values(holder=self.holder, held_until_s=now_s + HOLD_S)
            .returning(*pieces.c)
        )
        async with self._transaction() as connection:
            claimed = (await connection.execute(change)).mappings().all()
            held = sorted((rows.piece(row) for row in claimed), key=lambda each: each.number)
            known = set((await connection.execute(_answered_in(held))).scalars())
        return {each: known.intersection(each.numbers) for each in held}

    @uncancellable
    async def write(self, found: Sequence[Result], done: Sequence[Piece]) -> None:
        """Write results; in the same transaction forget pieces all of whose lines have one."""
        async with self._transaction() as connection:
            if found:
                await self._write(connection, found)
            for batch_id in {piece.batch_id for piece in done}:
                its = [piece.number for piece in done if piece.batch_id == batch_id]
                await connection.execute(
                    delete(pieces).where(pieces.c.batch_id == batch_id, pieces.c.number.in_(its))
                )

    async def _write(self, connection: AsyncConnection, found: Sequence[Result]) -> None:
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        added = [
            {
                "batch_id": each.batch_id,
                "line": each.line,
                "failed": each.failed,
                "content": each.content,
            }
            for each in found
        ]
        add = dialect.insert(results).on_conflict_do_nothing()
        written = await connection.execute(add.returning(results.c.batch_id, results.c.line), added)
        new = {(row.batch_id, row.line) for row in written}
        by_batch: dict[str, list[Result]] = {}
        for each in found:
            if (each.batch_id, each.line) in new:
                by_batch.setdefault(each.batch_id, []).append(each)
        for batch_id, its in by_batch.items():
            failed = sum(each.failed for each in its)
            await connection.execute(
                update(batches)
                .where(batches.c.id == batch_id)
                .values(
                    completed=batches.c.completed + len(its) - failed,
                    failed=batches.c.failed + failed,
                    **{
                        name: batches.c[name] + sum(getattr(each.usage, name) for each in its)
                        for name in rows.USAGE
                    },
                )
            )

    @uncancellable
    async def free(self, piece: Piece) -> None:
        """Hold a piece no longer."""
        async with self._transaction() as connection:
            await connection.execute(
                update(pieces)
                .where(pieces.c.batch_id == piece.batch_id, pieces.c.number == piece.number)
                .values(holder="", held_until_s=0.0)
            )

    @uncancellable
    async def pieces_left(self, batch_id: str, *, held: bool) -> int:
        """Return how many pieces of a batch are left; `held`: only those that somebody holds."""
        wanted = select(func.count()).where(pieces.c.batch_id == batch_id)
        if held:
            wanted = wanted.where(pieces.c.held_until_s >= self._now_s())
        async with self._transaction() as connection:
            return int((await connection.execute(wanted)).scalar_one())

    @uncancellable
    async def drop_free_pieces(self, batch_id: str) -> None:
        """Forget the pieces of a batch that no service holds."""
        async with self._transaction() as connection:
            await connection.execute(
                delete(pieces).where(
                    pieces.c.batch_id == batch_id, pieces.c.held_until_s < self._now_s()
                )
            )

    @uncancellable
    async def results(
        self, batch_id: str, after: int, limit: int, *, failed: bool | None = None
    ) -> list[tuple[int, bytes]]:
        """Return results of lines after one, in order, at most `limit`.

        Args:
            batch_id: The batch.
            after: Line after which they begin.
            limit: At most so many.
            failed: Only those of the error file, or of the output file; None: both.
        """
        wanted = (
            select(results.c.line, results.c.content)
            .where(results.c.batch_id == batch_id, results.c.line > after)
            .order_by(results.c.line)
            .limit(limit)
        )
        if failed is not None:
            wanted = wanted.where(results.c.failed == failed)
        async with self._transaction() as connection:
            return [(row.line, bytes(row.content)) for row in await connection.execute(wanted)]


def _answered_in(held: Sequence[Piece]) -> Select[Any]:
    """Return the query of the lines of some pieces that have a result."""
    within = (
        and_(
            results.c.batch_id == each.batch_id,
            results.c.line.between(each.numbers.start, each.numbers.stop - 1),
        )
        for each in held
    )
    return select(results.c.line).where(or_(false(), *within))

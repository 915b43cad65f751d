"""Batches in the database: their states, holds and accounts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.batch.v1.records import Batch, BatchState, File, WaitingAccount
from services.batch.adapters.store import rows
from services.batch.adapters.store.base import HOLD_S, StoreBase
from services.batch.adapters.store.tables import batches, files, pieces, results
from services.kit.database.connection import uncancellable
from services.kit.errors import NotFound, ResourceExhausted

_TIMES: Final = {
    BatchState.IN_PROGRESS: "in_progress_s",
    BatchState.FINALIZING: "finalizing_s",
    BatchState.CANCELLING: "cancelling_s",
    BatchState.COMPLETED: "ended_s",
    BatchState.FAILED: "ended_s",
    BatchState.EXPIRED: "ended_s",
    BatchState.CANCELLED: "ended_s",
}


class StoredBatches(StoreBase):
    """Batches, by owner and state."""

    @uncancellable
    async def add(self, batch: Batch, most_lines: int, most_batches: int) -> None:
        """Begin a batch.

        Raises:
            ResourceExhausted: Its owner has more lines that wait than `most_lines`, or more
                batches that have not ended than `most_batches`.
        """
        waiting = select(
            func.count(),
            func.coalesce(func.sum(batches.c.lines - batches.c.completed - batches.c.failed), 0),
        ).where(batches.c.owner == batch.owner, batches.c.state.in_(rows.OPEN))
        async with self._transaction() as connection:
            opened, found = map(int, (await connection.execute(waiting)).one())
            if opened >= most_batches:
                raise ResourceExhausted(
                    f"{opened} of your batches have not ended; batch.max_open_batches allows "
                    f"{most_batches}",
                    reason="TOO_MANY_BATCHES",
                )
            if found >= most_lines:
                raise ResourceExhausted(
                    f"{found} of your requests wait; batch.max_waiting_lines allows {most_lines}",
                    reason="TOO_MANY_LINES",
                )
            await connection.execute(insert(batches).values(**rows.batch_row(batch)))

    @uncancellable
    async def waiting(self, owner: str, but: str) -> tuple[int, int]:
        """Return the lines and the tokens that wait in an owner's batches, except one."""
        left = batches.c.lines - batches.c.completed - batches.c.failed
        share = left * batches.c.tokens / func.nullif(batches.c.lines, 0)
        wanted = select(func.coalesce(func.sum(left), 0), func.coalesce(func.sum(share), 0)).where(
            batches.c.owner == owner, batches.c.state.in_(rows.OPEN), batches.c.id != but
        )
        async with self._transaction() as connection:
            lines, tokens = (await connection.execute(wanted)).one()
        return int(lines), int(tokens)

    @uncancellable
    async def batch(self, id_: str, owner: str | None) -> Batch:
        """Return a batch.

        Args:
            id_: Its id.
            owner: Who must own it; None: anybody.

        Raises:
            NotFound: There is none.
        """
        async with self._transaction() as connection:
            found = await self._batch(connection, id_)
        if found is None or owner not in (None, found.owner):
            raise NotFound(f"no batch {id_[:80]!r}", reason="NO_SUCH_BATCH")
        return found

    @uncancellable
    async def list_batches(self, owner: str | None, *, after: str = "", limit: int) -> list[Batch]:
        """Return at most `limit` batches, newest first; `owner` None: of all."""
        wanted = select(batches)
        if owner is not None:
            wanted = wanted.where(batches.c.owner == owner)
        return [rows.batch(row) for row in await self._page(wanted, batches, after, limit)]

    @uncancellable
    async def open(self) -> list[Batch]:
        """Return batches that have not ended, by the end of their window."""
        wanted = (
            select(batches)
            .where(batches.c.state.in_(rows.OPEN))
            .order_by(batches.c.created_s + batches.c.window_s, batches.c.id)
        )
        async with self._transaction() as connection:
            return [rows.batch(row) for row in (await connection.execute(wanted)).mappings()]

    @uncancellable
    async def change(
        self, /, id_: str, state: BatchState, *, within: Sequence[BatchState], **values: Any
    ) -> Batch | None:
        """Change the state of a batch that is in one of some states; return it; None: it is not.

        Args:
            id_: The batch.
            state: Its next state.
            within: States that it may have now.
            values: Further columns.
        """
        if state in _TIMES:
            values = {_TIMES[state]: self._now_s(), **values}
        change = (
            update(batches)
            .where(batches.c.id == id_, batches.c.state.in_(within))
            .values(state=state, **values)
            .returning(*batches.c)
        )
        async with self._transaction() as connection:
            row = (await connection.execute(change)).mappings().one_or_none()
        return None if row is None else rows.batch(row)

    @uncancellable
    async def mark_expired(self, id_: str) -> None:
        """Note that lines of a batch were left when its window ended."""
        async with self._transaction() as connection:
            await connection.execute(
                update(batches).where(batches.c.id == id_).values(expired=True)
            )

    @uncancellable
    async def has_expired(self, id_: str) -> bool:
        """Return whether lines of a batch were left when its window ended."""
        async with self._transaction() as connection:
            wanted = select(batches.c.expired).where(batches.c.id == id_)
            return bool((await connection.execute(wanted)).scalar())

    @uncancellable
    async def hold(self, id_: str) -> bool:
        """Hold a batch, to read its input or write its output; return whether it is held."""
        now_s = self._now_s()
        change = (
            update(batches)
            .where(
                batches.c.id == id_,
                or_(batches.c.held_until_s < now_s, batches.c.holder == self.holder),
            )
            .values(holder=self.holder, held_until_s=now_s + HOLD_S)
        )
        async with self._transaction() as connection:
            return bool((await connection.execute(change)).rowcount)

    @uncancellable
    async def begin_account(self, id_: str, intensity_gco2e_per_kwh: float, own_j: float) -> None:
        """Note the grid at a batch's beginning, and a request's energy on a replica of its own, J.

        The first note counts.
        """
        async with self._transaction() as connection:
            await connection.execute(
                update(batches)
                .where(batches.c.id == id_, batches.c.begun_gco2e_per_kwh.is_(None))
                .values(begun_gco2e_per_kwh=intensity_gco2e_per_kwh, own_pool_j=own_j)
            )

    @uncancellable
    async def account(
        self, owner: str | None, since_s: float, until_s: float
    ) -> list[WaitingAccount]:
        """Return what batches took that began within a time, by owner and model.

        Args:
            owner: Whose; None: of all.
            since_s: Start, seconds since the epoch.
            until_s: End.
        """
        sums = [func.sum(each).label(name) for name, each in rows.SUMS.items()]
        wanted = (
            select(batches.c.owner, batches.c.model, func.count().label("batches"), *sums)
            .where(batches.c.created_s >= since_s, batches.c.created_s < until_s)
            .group_by(batches.c.owner, batches.c.model)
            .order_by(batches.c.owner, batches.c.model)
        )
        if owner is not None:
            wanted = wanted.where(batches.c.owner == owner)
        async with self._transaction() as connection:
            return [
                WaitingAccount(**dict[str, Any]({name: value or 0 for name, value in row.items()}))
                for row in (await connection.execute(wanted)).mappings()
            ]

    @uncancellable
    async def end(self, id_: str, state: BatchState, written: Mapping[str, File]) -> Batch | None:
        """End a batch whose output is written, in one transaction with its files.

        Args:
            id_: The batch.
            state: Its last state.
            written: Files by column: "output_file_id", "error_file_id".
        """
        async with self._transaction() as connection:
            change = (
                update(batches)
                .where(batches.c.id == id_, batches.c.state.in_(rows.OPEN))
                .values(
                    state=state,
                    ended_s=self._now_s(),
                    **{column: file.id for column, file in written.items()},
                )
                .returning(*batches.c)
            )
            row = (await connection.execute(change)).mappings().one_or_none()
            if row is None:
                return None
            for file in written.values():
                await connection.execute(insert(files).values(**rows.file_row(file)))
            for table in (pieces, results):
                await connection.execute(delete(table).where(table.c.batch_id == id_))
            return rows.batch(row)

    @uncancellable
    async def forget_batches(self, before_s: float) -> None:
        """Forget batches that ended before a time."""
        async with self._transaction() as connection:
            await connection.execute(
                delete(batches).where(and_(batches.c.ended_s < before_s, batches.c.ended_s > 0))
            )

    async def _batch(self, connection: AsyncConnection, id_: str) -> Batch | None:
        row = (
            (await connection.execute(select(batches).where(batches.c.id == id_)))
            .mappings()
            .one_or_none()
        )
        return None if row is None else rows.batch(row)

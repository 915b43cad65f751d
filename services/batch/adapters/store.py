"""Durable state: files, batches, pieces of input that wait, and results, one for each line.

A piece is held by one batch service at a time, for a while; what a killed one held is free again
then. Its lines leave the table in the transaction that writes their results, so that none is lost;
a line that was answered twice keeps its first result, so that none is doubled.
"""

import json
import math
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.batch.v1.records import Batch, BatchError, BatchState, File, WaitingAccount
from services.batch.adapters.tables import (
    VERSION,
    batches,
    files,
    metadata,
    pieces,
    results,
    schema,
)
from services.batch.core.lines import Usage
from services.kit.clock import Clock
from services.kit.database.address import address, shown
from services.kit.database.connection import Rejected, SharedConnection, uncancellable
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from services.kit.lock_file import LockFile
from services.kit.units import BYTES_PER_MIB, J_PER_KWH

SETTING: Final = "batch.database"
HOLD_S: Final = 30.0
"""Time for which a piece or a batch is held; renewed three times within it."""

_REMEDY: Final = "move it away to begin with an empty one, or put a backup back"
_OPEN: Final = (
    BatchState.VALIDATING,
    BatchState.IN_PROGRESS,
    BatchState.FINALIZING,
    BatchState.CANCELLING,
)
_TIMES: Final = {
    BatchState.IN_PROGRESS: "in_progress_s",
    BatchState.FINALIZING: "finalizing_s",
    BatchState.CANCELLING: "cancelling_s",
    BatchState.COMPLETED: "ended_s",
    BatchState.FAILED: "ended_s",
    BatchState.EXPIRED: "ended_s",
    BatchState.CANCELLED: "ended_s",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive lines of a batch's input.

    Attributes:
        batch_id: The batch.
        number: From 0.
        offset_bytes, size_bytes: Place in the input file.
        first_line: Number of its first line, from 1.
        lines: Number of lines.
    """

    batch_id: str
    number: int
    offset_bytes: int
    size_bytes: int
    first_line: int
    lines: int


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a line.

    Attributes:
        batch_id: The batch.
        line: From 1.
        failed: Whether it goes to the error file.
        content: The line of the output or error file.
        usage: Its cost.
    """

    batch_id: str
    line: int
    failed: bool
    content: bytes
    usage: Usage = field(default_factory=Usage)


class Store:
    """The database.

    Args:
        connection: To it.
        clock: Wall time.
    """

    def __init__(self, connection: SharedConnection, clock: Clock) -> None:
        self.connection = connection
        self._clock = clock
        self.holder = secrets.token_hex(8)

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

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        try:
            async with self.connection.transaction() as connection:
                yield connection
        except Rejected as error:  # such as a NUL, in PostgreSQL
            raise InvalidArgument(str(error)) from None

    # ---- files ---------------------------------------------------------------------------------

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
            await connection.execute(insert(files).values(**_file_row(file)))

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
        return _file(row)

    @uncancellable
    async def list_files(
        self, owner: str, *, purpose: str = "", after: str = "", limit: int
    ) -> list[File]:
        """Return at most `limit` files of an owner, newest first, from the one after `after`."""
        wanted = select(files).where(files.c.owner == owner)
        if purpose:
            wanted = wanted.where(files.c.purpose == purpose)
        return [_file(row) for row in await self._page(wanted, files, after, limit)]

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
                    batches.c.input_file_id == id_, batches.c.state.in_(_OPEN)
                )
            )
            if reading:
                raise FailedPrecondition(f"{id_}: batch {reading} reads it; cancel that first")
            await connection.execute(delete(files).where(files.c.id == id_))
        return file

    @uncancellable
    async def expired_files(self, limit: int) -> list[File]:
        """Forget files whose time is over and that no batch reads; return them."""
        reading = select(batches.c.input_file_id).where(batches.c.state.in_(_OPEN))
        over = (
            select(files.c.id)
            .where(files.c.expires_s < self._now_s(), files.c.id.not_in(reading))
            .limit(limit)
        )
        async with self._transaction() as connection:
            gone = delete(files).where(files.c.id.in_(over)).returning(*files.c)
            return [_file(row) for row in (await connection.execute(gone)).mappings()]

    # ---- batches -------------------------------------------------------------------------------

    @uncancellable
    async def stored_bytes(self, owner: str) -> int:
        """Return the size of an owner's files together."""
        async with self._transaction() as connection:
            return await _stored_bytes(connection, owner)

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
        ).where(batches.c.owner == batch.owner, batches.c.state.in_(_OPEN))
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
            await connection.execute(insert(batches).values(**_batch_row(batch)))

    @uncancellable
    async def waiting(self, owner: str, but: str) -> tuple[int, int]:
        """Return the lines and the tokens that wait in an owner's batches, except one."""
        left = batches.c.lines - batches.c.completed - batches.c.failed
        share = left * batches.c.tokens / func.nullif(batches.c.lines, 0)
        wanted = select(func.coalesce(func.sum(left), 0), func.coalesce(func.sum(share), 0)).where(
            batches.c.owner == owner, batches.c.state.in_(_OPEN), batches.c.id != but
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
        return [_batch(row) for row in await self._page(wanted, batches, after, limit)]

    @uncancellable
    async def open(self) -> list[Batch]:
        """Return batches that have not ended, by the end of their window."""
        wanted = (
            select(batches)
            .where(batches.c.state.in_(_OPEN))
            .order_by(batches.c.created_s + batches.c.window_s, batches.c.id)
        )
        async with self._transaction() as connection:
            return [_batch(row) for row in (await connection.execute(wanted)).mappings()]

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
        return None if row is None else _batch(row)

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
        sums = [func.sum(each).label(name) for name, each in _SUMS.items()]
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

    # ---- pieces and results --------------------------------------------------------------------

    @uncancellable
    async def cut(self, found: Sequence[Piece], faulty: Sequence[Result]) -> None:
        """Write pieces of a batch, and the results of lines that cannot be answered."""
        async with self._transaction() as connection:
            if found:
                await connection.execute(insert(pieces), [_piece_row(each) for each in found])
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
    async def claim(self, batch_id: str, limit: int) -> list[Piece]:
        """Hold the next free pieces of a batch, at most `limit`, and return them in order."""
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
            rows = (await connection.execute(change)).mappings().all()
        return sorted((_piece(row) for row in rows), key=lambda each: each.number)

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

    @uncancellable
    async def known(self, piece: Piece) -> set[int]:
        """Return the lines of a piece that have a result."""
        wanted = select(results.c.line).where(
            results.c.batch_id == piece.batch_id,
            results.c.line >= piece.first_line,
            results.c.line < piece.first_line + piece.lines,
        )
        async with self._transaction() as connection:
            return set((await connection.execute(wanted)).scalars())

    @uncancellable
    async def write(self, found: Sequence[Result], done: Sequence[Piece]) -> None:
        """Write results; in the same transaction forget pieces all of whose lines have one."""
        async with self._transaction() as connection:
            if found:
                await self._write(connection, found)
            for piece in done:
                await connection.execute(
                    delete(pieces).where(
                        pieces.c.batch_id == piece.batch_id, pieces.c.number == piece.number
                    )
                )

    async def _write(self, connection: AsyncConnection, found: Sequence[Result]) -> None:
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        rows = [
            {
                "batch_id": each.batch_id,
                "line": each.line,
                "failed": each.failed,
                "content": each.content,
            }
            for each in found
        ]
        add = dialect.insert(results).on_conflict_do_nothing()
        written = await connection.execute(add.returning(results.c.batch_id, results.c.line), rows)
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
                        for name in _USAGE
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
                .where(batches.c.id == id_, batches.c.state.in_(_OPEN))
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
                await connection.execute(insert(files).values(**_file_row(file)))
            for table in (pieces, results):
                await connection.execute(delete(table).where(table.c.batch_id == id_))
            return _batch(row)

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
        return None if row is None else _batch(row)

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


def _piece(row: RowMapping) -> Piece:
    names = ("batch_id", "number", "offset_bytes", "size_bytes", "first_line", "lines")
    return Piece(**{name: row[name] for name in names})


def _piece_row(piece: Piece) -> dict[str, Any]:
    return {name: getattr(piece, name) for name in Piece.__slots__}


def _time(value: float) -> datetime:
    return datetime.fromtimestamp(value, UTC)


def _file(row: RowMapping) -> File:
    names = ("id", "owner", "name", "purpose", "size_bytes")
    return File(
        **{name: row[name] for name in names},
        created_at=_time(row["created_s"]),
        expires_at=_time(row["expires_s"]),
    )


def _file_row(file: File) -> dict[str, Any]:
    names = ("id", "owner", "name", "purpose", "size_bytes")
    return {name: getattr(file, name) for name in names} | {
        "created_s": file.created_at.timestamp(),
        "expires_s": file.expires_at.timestamp(),
    }


_USAGE: Final = (
    "prompt_tokens",
    "output_tokens",
    "energy_j",
    "carbon_gco2e",
    "energy_marginal_j",
    "carbon_marginal_gco2e",
)
"""Sums of what answers state themselves."""

_KWH: Final = func.coalesce(batches.c.begun_gco2e_per_kwh, 0.0) / J_PER_KWH
_SUMS: Final = {
    **{name: batches.c[name] for name in ("completed", "failed", *_USAGE)},
    "at_once_gco2e": batches.c.energy_marginal_j * _KWH,
    "own_pool_gco2e": batches.c.completed * func.coalesce(batches.c.own_pool_j, 0.0) * _KWH,
}

_SAME: Final = (
    "id",
    "owner",
    "endpoint",
    "model",
    "input_file_id",
    "output_file_id",
    "error_file_id",
    "lines",
    "completed",
    "failed",
    *_USAGE,
)


def _batch(row: RowMapping) -> Batch:
    times: dict[str, Any] = {
        f"{name[:-2]}_at": None if row[name] is None else _time(row[name])
        for name in ("in_progress_s", "finalizing_s", "ended_s", "cancelling_s")
    }
    begun_g_per_j = (row["begun_gco2e_per_kwh"] or 0.0) / J_PER_KWH
    return Batch(
        **{name: row[name] for name in _SAME},
        at_once_gco2e=row["energy_marginal_j"] * begun_g_per_j,
        own_pool_gco2e=row["completed"] * (row["own_pool_j"] or 0.0) * begun_g_per_j,
        **times,
        window=timedelta(seconds=row["window_s"]),
        state=BatchState(row["state"]),
        errors=tuple(BatchError(**each) for each in json.loads(row["errors"])),
        metadata=json.loads(row["metadata"]),
        created_at=_time(row["created_s"]),
    )


def _batch_row(batch: Batch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in _SAME} | {
        "window_s": batch.window.total_seconds(),
        "state": batch.state,
        "metadata": json.dumps(dict(batch.metadata)),
        "created_s": batch.created_at.timestamp(),
    }


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

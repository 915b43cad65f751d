"""Opening the database: when this planner leads, and migrated to the newest schema."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncConnection

from services.kit.clock import RealClock
from services.kit.database.address import address, shown
from services.kit.database.connection import SharedConnection
from services.kit.errors import NotFound
from services.kit.lock_file import LockFile
from services.kit.state_file import Damaged
from services.kit.telemetry import logs
from services.planner.adapters.store import checks, schema
from services.planner.adapters.store.leadership import (
    FileLock,
    Leadership,
    Lock,
    Renewed,
    SessionLock,
)
from services.planner.adapters.store.store import ReadAhead, Store

_log = logs.get("store")

SETTING: Final = "planner.database"


@asynccontextmanager
async def open_store(
    database: Path | str,
    *,
    patience_s: float = 5.0,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Store]:
    """Open the database while the block runs; tables are made, or migrated, where needed.

    Writes of the store are on disk when its method returns: SQLite with a log that is
    synced at each commit, PostgreSQL with synchronous commits.

    Args:
        database: An SQLite file, or a URL (`services.kit.database.address`).
        patience_s: How long to wait for another planner to let go of it, s: one that was just
            killed may still be connected. Infinite: this planner stands by, and takes over from
            one that does not renew its lease.
        stop: Ends the waiting.

    Raises:
        InvalidArgument: The URL cannot be.
        FailedPrecondition: Another planner has it, or its schema is of another version.
        Unavailable: It cannot be reached.
        Cancelled: `stop` was set while another planner led.
    """
    url, stopping = address(database, SETTING), stop or asyncio.Event()
    async with AsyncExitStack() as held:
        lock = held.enter_context(_lock_of(url))
        leadership = Leadership(lock, shown(url), RealClock())

        async def prepare(connection: AsyncConnection) -> None:
            requested_s = None
            while requested_s is None:
                await leadership.take(connection, patience_s, stopping, ReadAhead())
                with suppress(Renewed):
                    async with connection.begin():
                        await connection.run_sync(schema.migrate, shown(url))
                        requested_s = await leadership.claim(connection)
            leadership.tenure.renewed(requested_s)

        opened = SharedConnection.opened(
            url, prepare, leadership.check, setting=SETTING, remedy=checks.REMEDY
        )
        shared = await held.enter_async_context(opened)
        _log.info("database", address=shown(url), term=leadership.lease.term)
        if url.get_backend_name() == "sqlite":
            await held.enter_async_context(_looked_at(Path(url.database or ""), shared))
        yield Store(shared, leadership)


@asynccontextmanager
async def _looked_at(path: Path, shared: SharedConnection) -> AsyncIterator[None]:
    """Check all of a large file while the block runs; the next transaction reports damage."""
    if not await asyncio.to_thread(checks.is_large, path):
        yield
        return
    stop = threading.Event()

    async def look() -> None:
        why = await asyncio.to_thread(checks.damage_of, path, stop)
        if why and not stop.is_set():
            shared.damaged = Damaged(path, why, checks.REMEDY)

    looking = asyncio.create_task(look(), name="planner.store.check")
    try:
        yield
    finally:
        stop.set()
        await looking


async def downgrade(database: Path | str, revision: str, *, patience_s: float = 5.0) -> str:
    """Make the schema one of an older planner; no planner may run.

    Args:
        database: `planner.database`.
        revision: The older planner's schema.
        patience_s: How long to wait for a planner to let go of it, s.

    Returns:
        The revision that the schema had.

    Raises:
        InvalidArgument: The URL cannot be, or there is no way back to this revision.
        NotFound: There is no database yet.
        FailedPrecondition: A planner runs, or the schema is older than that.
        Damaged: The file is damaged.
        Unavailable: The database cannot be reached.
    """
    url = address(database, SETTING)
    _require_file(url)
    with _lock_of(url) as lock:
        leadership = Leadership(lock, shown(url), RealClock())

        async def prepare(connection: AsyncConnection) -> None:
            await leadership.take(connection, patience_s, asyncio.Event())

        async def unchecked(_: AsyncConnection) -> None:
            """There is no lease: no other planner can lead while the lock is ours."""

        async with (
            SharedConnection.opened(
                url, prepare, unchecked, setting=SETTING, remedy=checks.REMEDY
            ) as shared,
            shared.transaction() as connection,
        ):
            return await connection.run_sync(schema.take_back, shown(url), revision)


def _require_file(url: URL) -> None:
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise NotFound.at(SETTING, f"there is no {shown(url)} yet")


@contextmanager
def _lock_of(url: URL) -> Iterator[Lock]:
    """Yield the database's lock, and let go of it at the end."""
    if url.get_backend_name() != "sqlite":
        yield SessionLock()
        return
    path = Path(url.database or "")
    with LockFile(Path(f"{path}.lock"), SETTING) as file:
        if file.take():  # else another planner may be making the database at this moment
            _refuse_empty(path)
        yield FileLock(file)


def _refuse_empty(path: Path) -> None:
    """Refuse a file of no bytes: a database that was cut off, which SQLite would begin again."""
    if path.is_file() and not path.stat().st_size:
        raise Damaged(path, "it is empty", checks.REMEDY)

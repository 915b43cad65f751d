"""Opening the database: when this planner leads, and migrated to the newest schema."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import URL, Connection, inspect, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection

from services.kit.clock import RealClock
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.state_file import Damaged
from services.kit.telemetry import logs
from services.planner.adapters.store import checks
from services.planner.adapters.store.connection import SharedConnection
from services.planner.adapters.store.leadership import FileLock, Leadership, Lock, SessionLock
from services.planner.adapters.store.store import Store

_log = logs.get("store")

_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_BEFORE_MIGRATIONS: Final = 1
"""`user_version` of SQLite files from before there were migrations."""


@asynccontextmanager
async def open_store(
    database: Path | str,
    *,
    patience_s: float = 5.0,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Store]:
    """Open the database while the block runs; tables are made, or migrated, where needed.

    What a method of the store writes is on the disk when it returns: SQLite with a log that is
    synced at each commit, PostgreSQL with synchronous commits.

    Args:
        database: An SQLite file, or a URL (`services.planner.adapters.store.opening`).
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
    url, stopping = address(database), stop or asyncio.Event()
    async with AsyncExitStack() as held:
        lock = held.enter_context(_lock_of(url))
        leadership = Leadership(lock, shown(url), RealClock())

        async def prepare(connection: AsyncConnection) -> None:
            await leadership.take(connection, patience_s, stopping)
            async with connection.begin():
                await connection.run_sync(_migrate, url)
                await leadership.claim(connection)

        opened = SharedConnection.opened(url, prepare, leadership.check)
        shared = await held.enter_async_context(opened)
        _log.info("database", address=shown(url), term=leadership.lease.term)
        yield Store(shared, leadership)


@contextmanager
def _lock_of(url: URL) -> Iterator[Lock]:
    """Yield the database's lock, and let go of it at the end."""
    if url.get_backend_name() != "sqlite":
        yield SessionLock()
        return
    path = Path(url.database or "")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition.at(
            "planner.database", f"{path.parent} cannot be made: {error.strerror}"
        ) from error
    lock = FileLock(path)
    try:
        yield lock
    finally:
        lock.release()


def _migrate(connection: Connection, url: URL) -> None:
    """Bring the schema up to date, in the transaction that is open.

    Raises:
        FailedPrecondition: This planner does not know the schema, or the file is damaged.
    """
    is_file = connection.dialect.name == "sqlite"
    if is_file and (why := checks.damage(connection)):
        raise Damaged(Path(url.database or ""), why, checks.REMEDY)
    _check_version(connection, url)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    before = MigrationContext.configure(connection).get_current_heads()
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise _unknown(url, str(error)) from error
    if is_file:
        if MigrationContext.configure(connection).get_current_heads() != before:
            checks.fill(connection)
        checks.keep(connection)


def _check_version(connection: Connection, url: URL) -> None:
    """Check the mark that SQLite files bore before there were migrations."""
    if connection.dialect.name != "sqlite" or inspect(connection).has_table("alembic_version"):
        return
    found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if found not in (0, _BEFORE_MIGRATIONS):
        raise _unknown(url, f"schema version {found}")


def _unknown(url: URL, what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"planner.database: {shown(url)} was written by another planner than this ({what}); "
        "use a newer one, or move the database away to start with an empty one"
    )


_DRIVERS = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}


def address(database: Path | str) -> URL:
    """Return the address of the database, for the driver that we use.

    Args:
        database: An SQLite file, or a URL as libpq takes it.

    Raises:
        InvalidArgument: The value is not a URL, or names an unsupported kind of database. The
            message holds no password.
    """
    if isinstance(database, Path):
        return URL.create(_DRIVERS["sqlite"], database=str(database))
    try:
        url = make_url(database)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        raise _wrong("not a URL such as postgresql://user@host/name") from None
    driver = _DRIVERS.get(url.get_backend_name())
    if driver is None:
        kinds = " or ".join(_DRIVERS)
        raise _wrong(f"must be a file or the URL of {kinds}, got {url.get_backend_name()}")
    url = url.set(drivername=driver)
    if "sslmode" in url.query:  # libpq's name; the driver has its own
        sslmode = url.query["sslmode"]
        url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": sslmode})
    return url


def shown(url: URL) -> str:
    """Return an address as people may see it: no password, and no query that could hold one."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host", "")
    bare = URL.create(url.get_backend_name(), url.username, None, str(host), url.port, url.database)
    return bare.render_as_string()


def _wrong(message: str) -> InvalidArgument:
    return InvalidArgument.at("planner.database", f"{message}")

"""A process's only connection to a database: users take turns; a broken one is opened again.

There is one, because a reader must not see uncommitted rows, and because PostgreSQL's session locks
live and die with it.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

from sqlalchemy import URL, event
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from services.kit import row_checksums
from services.kit.errors import Unavailable
from services.kit.state_file import Damaged
from services.kit.telemetry import logs

_log = logs.get("store")

READS: Final = "cinquefoil_reads"
"""Option of a connection whose transactions write nothing; SQLite's then take no lock."""

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="HasConnection")

_DAMAGE_CODES: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_WRITE_CODES: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)
_CONNECT_S: Final = 10.0
_SESSION: Final = {
    "synchronous_commit": "on",
    # A service whose host died must not keep its locks for hours.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

Prepare = Callable[[AsyncConnection], Awaitable[None]]
"""Prepares a new connection for use."""


class Rejected(Exception):
    """The database refuses a value, and would refuse it again; nothing has changed."""


class SharedConnection:
    """A connection that is reopened when it breaks.

    Attributes:
        damaged: Error of each transaction from now on; None: no damage is known.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        prepare: Prepare,
        check: Prepare,
        *,
        setting: str,
        remedy: str,
    ) -> None:
        self.damaged: Damaged | None = None
        self._engine = engine
        self._setting, self._remedy = setting, remedy
        self._prepare = prepare
        self._check = check
        self._turn = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._work: dict[asyncio.Task[Any], None] = {}  # in order: a history repeats

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, url: URL, prepare: Prepare, check: Prepare, *, setting: str, remedy: str
    ) -> AsyncIterator[Self]:
        """Keep a connection while the block runs.

        Args:
            url: Address of the database.
            prepare: Called with each new connection.
            check: Called at the beginning of each transaction; an error ends it.
            setting: The setting that names the database, such as "planner.database"; in errors.
            remedy: Advice where the file is damaged.

        Raises:
            Unavailable: No connection can be opened.
            ServiceError: Raised by `prepare`.
        """
        engine = _engine(url, f"cinquefoil-{setting.partition('.')[0]}")
        shared = cls(engine, prepare, check, setting=setting, remedy=remedy)
        try:
            async with shared.transaction():
                pass
            yield shared
        finally:
            await asyncio.gather(*shared._work, return_exceptions=True)
            await shared._drop()
            await engine.dispose()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end, even if the caller is cancelled meanwhile.

        Cancelling a statement leaves a connection in an undefined state, and closing it would give
        up the lock: too high a price for a reader that hangs up.
        """
        task = asyncio.create_task(work, name="store")
        self._work[task] = None
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._work.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            _log.debug(
                "not done", error=str(task.exception())
            )  # the caller has got it, if still there

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Hold the connection, in a transaction that ends with the block.

        Raises:
            Damaged: The file is not as it was written.
            Unavailable: The database is away, or cannot write now; nothing has changed, unless the
                connection broke within the commit.
            Rejected: A column cannot hold a value.
        """
        async with self._turn:
            if self.damaged:
                raise self.damaged
            try:
                connection = self._connection or await self._connect()
                async with connection.begin():
                    await self._check(connection)
                    yield connection
            except (IntegrityError, ProgrammingError):
                raise  # ours, not the database's
            except UnicodeDecodeError as error:  # of what SQLite says of a damaged schema
                await self._drop()
                raise Damaged(Path(self._engine.url.database or ""), error, self._remedy) from error
            except OverflowError as error:  # of SQLite's driver
                raise Rejected(f"{self._setting}: {error}") from error
            except (DBAPIError, OSError) as error:
                if _is_data(error):
                    raise Rejected(f"{self._setting}: {_words(error)}") from error
                code = _sqlite_code(error)
                if code not in _NO_WRITE_CODES:  # a connection that cannot write can still read
                    await self._drop()
                if code in _DAMAGE_CODES:
                    path = Path(self._engine.url.database or "")
                    raise Damaged(path, _words(error), self._remedy) from error
                raise Unavailable(f"{self._setting}: {_words(error)}") from error

    async def _connect(self) -> AsyncConnection:
        connection = await self._engine.connect()
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError, OSError):  # what is broken cannot be closed properly
                await connection.close()


class HasConnection(Protocol):
    """Base of users of the connection. Attributes: connection."""

    connection: SharedConnection


def uncancellable(
    method: Callable[Concatenate[H, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Run a method to its end, even if its caller is cancelled meanwhile."""

    @wraps(method)
    async def done(owner: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await owner.connection.finish(method(owner, *args, **kwargs))

    return done


def _engine(url: URL, name: str) -> AsyncEngine:
    if url.get_backend_name() == "postgresql":
        session = {"application_name": name, **_SESSION}
        arguments: dict[str, Any] = {"server_settings": session, "timeout": _CONNECT_S}
        return create_async_engine(url, poolclass=NullPool, connect_args=arguments)
    engine = create_async_engine(url, poolclass=NullPool)
    event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions are ours, not the driver's
    connection.create_function(row_checksums.FUNCTION, -1, row_checksums.checksum)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Any) -> None:
    reads = connection.get_execution_options().get(READS)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _is_data(error: DBAPIError | OSError) -> bool:
    """Return whether PostgreSQL, or its driver, refuses a value: SQLSTATE class 22."""
    cause = error.orig.__cause__ if isinstance(error, DBAPIError) and error.orig else None
    return isinstance(cause, ValueError) or str(getattr(cause, "sqlstate", "")).startswith("22")


def _sqlite_code(error: DBAPIError | OSError) -> int:
    """Return SQLite's primary error code; 0: the error is not SQLite's."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _words(error: BaseException) -> str:
    """Return the database's message without the driver's wrapping."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(said.__cause__ or said)

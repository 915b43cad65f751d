"""Integrity check of an SQLite database before it is used."""

import threading
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from services.kit import row_checksums
from services.planner.adapters.store.tables import metadata

_PLANS: Final = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'plans'"
_LARGE_BYTES: Final = 32 << 20
_NEWEST: Final = 100
_STEPS: Final = 10_000
"""Instructions of SQLite's virtual machine between two checks whether to stop."""

REMEDY: Final = (
    "restore a backup with `cinquefoil restore FILE`, or move the file away to start with an "
    "empty database"
)


def is_large(path: Path) -> bool:
    """Return whether checking all of an SQLite database would delay a start too much."""
    return path.stat().st_size > _LARGE_BYTES


def damage(connection: Connection, *, newest: bool = False) -> str:
    """Return the damage of an SQLite database; "": none.

    Args:
        connection: To the database.
        newest: Check only the newest rows of each table, and no other page.
    """
    try:
        if not newest:
            found = connection.exec_driver_sql(row_checksums.INTEGRITY).scalar_one()
            if found != "ok":
                return str(found)
        for table in metadata.tables:
            columns = _columns(connection, table)
            if columns:
                query = row_checksums.damaged_rows(table, columns, _NEWEST if newest else None)
                rows = connection.exec_driver_sql(query).scalar_one()
                if rows:
                    return f"{rows} rows of {table} have another checksum than they were given"
    except (DBAPIError, UnicodeDecodeError) as error:  # the latter: it quotes a damaged schema
        return str(getattr(error, "orig", error))
    return ""


def damage_of(path: Path, stop: threading.Event | None = None) -> str:
    """Return the damage of the file of a planner's SQLite database; "": none.

    Args:
        path: The file.
        stop: Ends the search; its result is then meaningless.
    """
    stopping = stop or threading.Event()
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)

    def set_up(connection: Any, _record: object) -> None:
        connection.create_function(row_checksums.FUNCTION, -1, row_checksums.checksum)
        connection.set_progress_handler(stopping.is_set, _STEPS)

    event.listen(engine, "connect", set_up)
    try:
        with engine.connect() as connection:
            found = connection.exec_driver_sql(_PLANS).scalar_one()
            return damage(connection) if found else "it has no plans: it is no planner's database"
    except (DBAPIError, UnicodeDecodeError) as error:  # the latter: it quotes a damaged schema
        return str(getattr(error, "orig", error))
    finally:
        engine.dispose()


def fill(connection: Connection) -> None:
    """Write the checksum of every row of an SQLite database, if its schema has them."""
    for table in metadata.tables:
        if columns := _columns(connection, table):
            connection.exec_driver_sql(row_checksums.fill(table, columns))


def keep(connection: Connection) -> None:
    """Maintain the checksums of rows that this connection to an SQLite database writes."""
    for table in metadata.tables:
        for statement in row_checksums.triggers(table, _columns(connection, table)):
            connection.exec_driver_sql(statement)


def _columns(connection: Connection, table: str) -> list[str]:
    return list(connection.exec_driver_sql(row_checksums.columns_of(table)).scalars())

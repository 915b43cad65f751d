"""Checksums of the rows of an SQLite database, so that a damaged value is never read as another.

SQLite's own checks find pages that make no sense; a bit that flips inside of a value makes sense.
A table that is to be checked has a column `crc`. Triggers of the writing connection keep it, so
that no statement can forget it; PostgreSQL has checksums of its own (`initdb --data-checksums`).
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Final

COLUMN: Final = "crc"
FUNCTION: Final = "cinquefoil_crc"
"""Name by which SQL calls `checksum`: each connection has to define it."""

INTEGRITY: Final = "PRAGMA integrity_check(1)"
"""Returns one row, "ok", unless a page or an index makes no sense."""


def checksum(*values: object) -> int:
    """Return the CRC-32 of a row's values, each with its type and length."""
    return zlib.crc32(b"".join(map(_tagged, values)))


def _tagged(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"b%d:%b" % (len(value), value)
    data = repr(value).encode()
    return b"v%d:%b" % (len(data), data)


def columns_of(table: str) -> str:
    """Return the query for a table's columns that have a checksum; no row: it has none."""
    return (
        f"SELECT name FROM pragma_table_info('{table}') WHERE name != '{COLUMN}' AND EXISTS "  # noqa: S608 - a name of ours
        f"(SELECT 1 FROM pragma_table_info('{table}') WHERE name = '{COLUMN}') ORDER BY name"
    )


def damaged_rows(table: str, columns: Sequence[str], newest: int | None = None) -> str:
    """Return the query for the number of damaged rows.

    Args:
        table: Its name.
        columns: Those that have a checksum.
        newest: Look at this many rows; None: at all.
    """
    damaged = f"SELECT count(*) FROM {table} WHERE {COLUMN} IS NOT {_call(columns)}"  # noqa: S608
    if newest is None:
        return damaged
    return f"{damaged} AND rowid > (SELECT max(rowid) FROM {table}) - {newest}"  # noqa: S608


def fill(table: str, columns: Sequence[str]) -> str:
    """Return the statement that gives every row its checksum, after a change of the schema."""
    return f"UPDATE {table} SET {COLUMN} = {_call(columns)}"  # noqa: S608


def triggers(table: str, columns: Sequence[str], key: Sequence[str] = ("rowid",)) -> Iterator[str]:
    """Yield the statements that make this connection maintain a table's checksums.

    Args:
        table: Its name.
        columns: Those that have a checksum.
        key: Those that identify a row.
    """
    same = " AND ".join(f"{name} = NEW.{name}" for name in key)
    for event in ("INSERT", f"UPDATE OF {', '.join(columns)}"):
        name = f"{table}_{COLUMN}_{event[:6].lower()}"
        yield f"DROP TRIGGER IF EXISTS temp.{name}"
        yield (
            f"CREATE TEMP TRIGGER {name} AFTER {event} ON main.{table} BEGIN "
            f"{fill(table, columns)} WHERE {same}; END"
        )


def _call(columns: Sequence[str]) -> str:
    return f"{FUNCTION}({', '.join(columns)})"

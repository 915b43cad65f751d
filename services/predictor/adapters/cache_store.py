"""The prompt cache on disk: one SQLite file that only its owner may read.

Deleted rows are overwritten with zeros, not only unlinked. The file holds no prompts, but vectors,
which reveal roughly what prompts were about.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from services.kit import row_checksums
from services.kit.errors import FailedPrecondition, Unavailable
from services.kit.state_file import not_written
from services.kit.telemetry import logs
from services.predictor.core.cache.answer_lengths import AnswerLengths
from services.predictor.core.cache.lru_index import Changes, Entry
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.cache.vector_index import coded, decoded

_log = logs.get("cache")

_VERSION: Final = 2
_WITHOUT_CHECKSUMS: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, crc INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (
    model TEXT PRIMARY KEY, state BLOB NOT NULL, crc INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entry (
    model TEXT NOT NULL,
    key BLOB NOT NULL,
    code BLOB,
    count INTEGER NOT NULL,
    mean_tokens REAL NOT NULL,
    deviation_tokens REAL NOT NULL,
    astray INTEGER NOT NULL,
    standing INTEGER NOT NULL,
    used_s REAL NOT NULL,
    crc INTEGER,
    PRIMARY KEY (model, key)
) WITHOUT ROWID;
"""
_KEYS: Final = {"about": ("name",), "history": ("model",), "entry": ("model", "key")}
_ENTRY: Final = "model, key, code, count, mean_tokens, deviation_tokens, astray, standing, used_s"
_WRITE: Final = f"INSERT OR REPLACE INTO entry ({_ENTRY}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_READ: Final = f"SELECT {_ENTRY} FROM entry ORDER BY used_s"  # noqa: S608
_IN_USE: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SECRET_BYTES: Final = 32


class CacheStore:
    """The file, open and locked by this process. Calls block until the data is on disk.

    Use `opened`.

    Attributes:
        secret: Key of the prompts' hashes; without it prompts cannot be guessed from them.
    """

    def __init__(self, database: sqlite3.Connection, secret: bytes) -> None:
        self._database = database
        self.secret = secret

    @classmethod
    def opened(cls, path: Path, embedder: str) -> CacheStore:
        """Open a file; replace one that is damaged or has another embedder's vectors.

        It is deleted, not set aside: a prompt that is to be forgotten must not lie in a copy.

        Args:
            path: Path of the file; a missing folder is created.
            embedder: Name of the embedder.

        Raises:
            FailedPrecondition: Another process has the file open.
            Unavailable: The disk does not take it.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return cls._opened(path, embedder)
            except (sqlite3.DatabaseError, ValueError, _UnusableError) as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                _log.warning("cache replaced", path=str(path), cause=str(error))
                path.unlink()
                path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
                return cls._opened(path, embedder)
        except OSError as error:
            raise not_written(path, error) from error
        except sqlite3.OperationalError as error:
            kind = FailedPrecondition if error.sqlite_errorcode in _IN_USE else Unavailable
            raise kind(f"{path} cannot be opened: {error}") from error

    @classmethod
    def _opened(cls, path: Path, embedder: str) -> CacheStore:
        path.touch(mode=0o600)
        path.chmod(0o600)  # SQLite gives its journal the file's permission
        database = sqlite3.connect(path, timeout=1.0, check_same_thread=False, isolation_level=None)
        try:
            secret = _prepared(database, embedder)
        except BaseException:
            database.close()
            raise
        return cls(database, secret)

    def restore(self, cache: SemanticCache) -> None:
        """Add every entry to a cache; delete the entries of unknown models."""
        marks = ", ".join("?" * len(cache.of))
        unknown = f"DELETE FROM entry WHERE model NOT IN ({marks})"  # noqa: S608 - only "?"
        self._database.execute(unknown, tuple(cache.of))
        rows = self._database.execute(_READ)
        for model, key, code, count, mean, deviation, outliers, score, used_s in rows:
            entry = Entry(AnswerLengths(count, mean, deviation, outliers), used_s, score)
            vector = None if code is None else decoded(np.frombuffer(code, np.int8))
            cache.of[model].restore(key, entry, vector)

    def histories(self) -> dict[str, bytes]:
        """Return the saved length models, by model."""
        return dict(self._database.execute("SELECT model, state FROM history"))

    def save(self, changes: Mapping[str, Changes], histories: Mapping[str, bytes]) -> None:
        """Write changes by model, and length models, in one transaction."""
        with closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN")
            try:
                cursor.executemany("DELETE FROM entry WHERE model = ? AND key = ?", _gone(changes))
                cursor.executemany(_WRITE, _rows(changes))
                cursor.executemany(
                    "INSERT OR REPLACE INTO history (model, state) VALUES (?, ?)", histories.items()
                )
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def close(self) -> None:
        """Close and unlock the file."""
        self._database.close()


class _UnusableError(Exception):
    """The file is damaged, of another version, or of another embedder."""


def _prepared(database: sqlite3.Connection, embedder: str) -> bytes:
    """Lock a file, create missing tables, and return its secret."""
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA secure_delete = ON")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in {0, _WITHOUT_CHECKSUMS, _VERSION}:
        raise _UnusableError(f"version {version}, not {_VERSION}")
    database.create_function(row_checksums.FUNCTION, -1, row_checksums.checksum)
    (found,) = database.execute(row_checksums.INTEGRITY).fetchone()
    if found != "ok":
        raise _UnusableError(found)
    database.executescript(f"BEGIN EXCLUSIVE; {_TABLES} PRAGMA user_version = {_VERSION};")
    for table, key in _KEYS.items():
        _check_rows(database, table, key, known=version == _VERSION)
    secret = _about(database, "secret", secrets.token_bytes(_SECRET_BYTES))
    made_by = _about(database, "embedder", embedder.encode()).decode()
    if made_by != embedder:
        raise _UnusableError(f"vectors of {made_by}, not of {embedder}")
    database.execute("COMMIT")
    return secret


def _check_rows(
    database: sqlite3.Connection, table: str, key: Sequence[str], *, known: bool
) -> None:
    """Check the checksums of a table where they are known, else give them; and keep them.

    Raises:
        _UnusableError: A row is not as it was written.
    """
    if not known and not database.execute(row_checksums.columns_of(table)).fetchall():
        database.execute(f"ALTER TABLE {table} ADD COLUMN {row_checksums.COLUMN} INTEGER")
    columns = [name for (name,) in database.execute(row_checksums.columns_of(table))]
    if known:
        (rows,) = database.execute(row_checksums.damaged_rows(table, columns)).fetchone()
        if rows:
            raise _UnusableError(f"{rows} rows of {table} are not as they were written")
    else:
        database.execute(row_checksums.fill(table, columns))
    for statement in row_checksums.triggers(table, columns, key):
        database.execute(statement)


def _about(database: sqlite3.Connection, name: str, default: bytes) -> bytes:
    database.execute("INSERT OR IGNORE INTO about (name, value) VALUES (?, ?)", (name, default))
    (value,) = database.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return bytes(value)


def _gone(changes: Mapping[str, Changes]) -> Iterator[tuple[str, bytes]]:
    return ((model, key) for model, each in changes.items() for key in each.dropped)


def _rows(changes: Mapping[str, Changes]) -> Iterator[tuple[object, ...]]:
    for model, each in changes.items():
        for key, (entry, vector) in each.written.items():
            lengths = entry.lengths
            yield (
                *(model, key, None if vector is None else coded(vector).tobytes()),
                *(lengths.count, lengths.mean_tokens, lengths.deviation_tokens, lengths.outliers),
                *(entry.score, entry.used_s),
            )

"""Where entries outlive the process: one SQLite file that only its owner may read.

Deleted rows are overwritten with zeros, not only unlinked. There is no prompt in it, but vectors,
which tell some of what prompts were about.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from services.kit.errors import FailedPrecondition
from services.kit.telemetry import logs
from services.predictor.core.cache.answer_lengths import Lengths
from services.predictor.core.cache.lru_index import Changes, Entry
from services.predictor.core.cache.semantic_cache import SemanticCache
from services.predictor.core.cache.vector_index import Vector, coded, decoded

_log = logs.get("cache")

_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (model TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID;
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
    PRIMARY KEY (model, key)
) WITHOUT ROWID;
"""
_WRITE: Final = "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SECRET_BYTES: Final = 32

Written = Mapping[str, tuple[Changes, Mapping[bytes, tuple[Entry, Vector | None]]]]


class Store:
    """The file, open and locked: of one process alone. Calls block until the disk has it.

    Use `opened`.

    Attributes:
        secret: Keys the hashes of prompts; without the file nobody can guess prompts from them.
    """

    def __init__(self, database: sqlite3.Connection, secret: bytes) -> None:
        self._database = database
        self.secret = secret

    @classmethod
    def opened(cls, path: Path, embedder: str) -> Store:
        """Open a file, or begin it anew where it is damaged or its vectors do not compare.

        Args:
            path: The file; its folder is made where it is missing.
            embedder: Name of what makes the vectors.

        Raises:
            FailedPrecondition: Another process has it open.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return cls._opened(path, embedder)
        except sqlite3.OperationalError as error:
            raise FailedPrecondition(f"{path} cannot be opened: {error}") from error
        except (sqlite3.DatabaseError, _OtherVectorsError) as error:
            _log.warning("cache begun anew", path=str(path), cause=str(error))
            path.unlink()
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
            return cls._opened(path, embedder)

    @classmethod
    def _opened(cls, path: Path, embedder: str) -> Store:
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
        """Put every entry back into a cache; delete those of models that it does not know."""
        models = ", ".join("?" * len(cache.models))
        strangers = f"DELETE FROM entry WHERE model NOT IN ({models})"  # noqa: S608 - only "?"
        self._database.execute(strangers, cache.models)
        rows = self._database.execute("SELECT * FROM entry ORDER BY used_s")
        for model, key, code, count, mean, deviation, astray, standing, used_s in rows:
            entry = Entry(Lengths(count, mean, deviation, astray), used_s, standing)
            vector = None if code is None else decoded(np.frombuffer(code, np.int8))
            cache.restore(model, key, entry, vector)

    def histories(self) -> dict[str, bytes]:
        """Return, by model, what was saved of its answers."""
        return dict(self._database.execute("SELECT model, state FROM history"))

    def save(self, written: Written, histories: Mapping[str, bytes]) -> None:
        """Write what changed, all of it or nothing."""
        with closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN")
            try:
                cursor.executemany("DELETE FROM entry WHERE model = ? AND key = ?", _gone(written))
                cursor.executemany(_WRITE, _rows(written))
                cursor.executemany(
                    "INSERT OR REPLACE INTO history VALUES (?, ?)", histories.items()
                )
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


class _OtherVectorsError(Exception):
    """The file is of another version, or another embedder."""


def _prepared(database: sqlite3.Connection, embedder: str) -> bytes:
    """Lock a file, make its tables where it has none, and return its secret."""
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA secure_delete = ON")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version not in {0, _VERSION}:
        raise _OtherVectorsError(f"version {version}, not {_VERSION}")
    database.executescript(f"BEGIN EXCLUSIVE; {_TABLES} PRAGMA user_version = {_VERSION};")
    secret = _about(database, "secret", secrets.token_bytes(_SECRET_BYTES))
    made_by = _about(database, "embedder", embedder.encode()).decode()
    if made_by != embedder:
        raise _OtherVectorsError(f"vectors of {made_by}, not of {embedder}")
    database.execute("COMMIT")
    return secret


def _about(database: sqlite3.Connection, name: str, default: bytes) -> bytes:
    database.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, default))
    (value,) = database.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return bytes(value)


def _gone(written: Written) -> Iterator[tuple[str, bytes]]:
    for model, (changes, _) in written.items():
        yield from ((model, key) for key in changes.dropped)


def _rows(written: Written) -> Iterable[tuple[object, ...]]:
    for model, (_, entries) in written.items():
        for key, (entry, vector) in entries.items():
            lengths = entry.lengths
            yield (
                *(model, key, None if vector is None else coded(vector).tobytes()),
                *(lengths.count, lengths.mean_tokens, lengths.deviation_tokens, lengths.astray),
                *(entry.standing, entry.used_s),
            )

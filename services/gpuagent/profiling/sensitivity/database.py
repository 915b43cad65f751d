"""Sensitivity by operator type, shapes and device, in one SQLite file: mu-Serve's database D.

Several processes may use a file at a time.
"""

import sqlite3
from pathlib import Path
from typing import Final, Self

from services.gpuagent.profiling.core.operator_bucket import Bucket
from services.kit.errors import FailedPrecondition
from services.kit.operators.core.clock_sensitivity import Cost

_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS sensitivity (
    operator TEXT NOT NULL,
    datatype TEXT NOT NULL,
    shapes TEXT NOT NULL,
    device TEXT NOT NULL,
    method TEXT NOT NULL,
    latency_s REAL NOT NULL,
    half_clock_s REAL NOT NULL,
    score REAL NOT NULL,
    PRIMARY KEY (operator, datatype, shapes, device, method)
) WITHOUT ROWID;
"""


class Database:
    """An open file; a context manager.

    Args:
        path: The file; it and its folder are made where they are missing.

    Raises:
        FailedPrecondition: It is not a database of ours, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = sqlite3.connect(path, timeout=10.0)
            self._prepare()
        except sqlite3.DatabaseError as error:
            raise FailedPrecondition(f"{path} is no sensitivity database: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, bucket: Bucket, device: str, method: str) -> Cost | None:
        """Return the times of a bucket's operators on a device, or None where none are known.

        The device is for example "a100-40gb", the method "measured" or "model".
        """
        row = self._file.execute(
            "SELECT latency_s, half_clock_s FROM sensitivity WHERE operator = ? AND datatype = ? "
            "AND shapes = ? AND device = ? AND method = ?",
            (bucket.operator, bucket.datatype, bucket.shapes, device, method),
        ).fetchone()
        return None if row is None else Cost(*row)

    def keep(self, bucket: Bucket, device: str, method: str, cost: Cost) -> None:
        """Write the times of a bucket's operators, in place of those that were there."""
        with self._file:
            self._file.execute(
                "INSERT OR REPLACE INTO sensitivity VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(bucket.operator, bucket.datatype, bucket.shapes, device, method),
                    *(cost.latency_s, cost.half_clock_s, cost.score),
                ),
            )

    def _prepare(self) -> None:
        (version,) = self._file.execute("PRAGMA user_version").fetchone()
        if version not in {0, _VERSION}:
            raise sqlite3.DatabaseError(f"version {version}, not {_VERSION}")
        self._file.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION};")

"""Observations of up to five weeks in one SQLite file: amounts by five minutes.

One process writes; others read at any time. The file has at most `MAX_RECORDS` records of at most
`MAX_RECORD_BYTES`; the oldest go first.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from services.gpuagent.observation.core.record import STEP_S, Record
from services.kit.errors import FailedPrecondition, NotFound, Unavailable

MAX_DAYS: Final = 35
MAX_RECORDS: Final = MAX_DAYS * 86400 // STEP_S
MAX_RECORD_BYTES: Final = 256 * 2**10
"""About a hundred servers; a record beyond it is not stored."""

_VERSION: Final = 1
_PAGES: Final = 512 * 2**10
"""Pages of 4 KiB that the file may have: 2 GiB."""

_TIMEOUT_S: Final = 10.0
_TABLES: Final = """
create table if not exists records (start_s integer primary key, document text not null);
create table if not exists days (day text primary key, document text not null);
"""


@dataclass(slots=True)
class History:
    """The file. Its calls block.

    Attributes:
        path: The file; its folder is made where it is missing.
    """

    path: Path
    _made: bool = field(default=False, repr=False)

    def add(self, record: Record) -> bool:
        """Store a record in place of one of the same time; return False where it is too large.

        Raises:
            Unavailable: The disk does not take it.
            FailedPrecondition: The file has another form.
        """
        text = json.dumps(record.document(), separators=(",", ":"), allow_nan=False)
        if len(text) > MAX_RECORD_BYTES:
            return False
        with self._opened() as database:
            database.execute("insert or replace into records values (?, ?)", (record.start_s, text))
            database.execute(
                "delete from records where start_s not in"
                " (select start_s from records order by start_s desc limit ?)",
                (MAX_RECORDS,),
            )
            first = datetime.fromtimestamp(record.start_s, UTC).date() - timedelta(MAX_DAYS)
            database.execute("delete from days where day < ?", (first.isoformat(),))
        return True

    def records(self, day: date) -> tuple[Record, ...]:
        """Return the records of a day (UTC), in order; those that are damaged are left out.

        Raises:
            NotFound: There is no such file.
            FailedPrecondition: It has another form.
        """
        start_s = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        query = (
            "select start_s, document from records where start_s >= ? and start_s < ? order by 1"
        )
        return tuple(
            found
            for at_s, text in self._read(query, (start_s, start_s + 86400))
            if (found := _record(at_s, text)) is not None
        )

    def days(self) -> tuple[date, ...]:
        """Return the days (UTC) of which there are records; errors as of `records`."""
        query = "select distinct start_s / 86400 from records order by 1"
        return tuple(
            datetime.fromtimestamp(86400 * number, UTC).date()
            for (number,) in self._read(query, ())
            if isinstance(number, int) and 0 <= number < 100_000
        )

    def keep_day(self, day: date, document: dict[str, Any]) -> None:
        """Store the result of a day; errors as of `add`."""
        text = json.dumps(document, allow_nan=False)
        with self._opened() as database:
            database.execute("insert or replace into days values (?, ?)", (day.isoformat(), text))

    def kept_days(self) -> dict[date, dict[str, Any]]:
        """Return the results of days; errors as of `records`."""
        found = {}
        for day, text in self._read("select day, document from days order by 1", ()):
            try:
                document = json.loads(text)
                if isinstance(document, dict):
                    found[date.fromisoformat(day)] = document
            except (TypeError, ValueError):
                continue
        return found

    def _read(self, query: str, given: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            raise NotFound(
                f"{self.path}: no observations are stored there (cinquefoil observe --store FILE,"
                " or an agent's STATE_DIR/NODE/observations.db)"
            )
        with self._opened() as database:
            return database.execute(query, given).fetchall()

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_TIMEOUT_S)) as database, database:
                self._prepare(database)
                yield database
        except (sqlite3.DatabaseError, OSError) as error:
            text = f"{self.path}: {error}"
            if isinstance(error, sqlite3.OperationalError | OSError):
                raise Unavailable(f"{text}; observations are not stored") from error
            raise FailedPrecondition(
                f"{text}: no file of observations, or a damaged one; move it away to begin another",
                reason="STATE_DAMAGED",
            ) from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        if self._made:
            return
        (version,) = database.execute("pragma user_version").fetchone()
        if version not in {0, _VERSION}:
            raise FailedPrecondition(
                f"{self.path} is of version {version}, and this Cinquefoil reads {_VERSION}:"
                " move it away to begin another"
            )
        database.execute(f"pragma max_page_count = {_PAGES}")
        database.executescript(_TABLES)
        database.execute(f"pragma user_version = {_VERSION}")
        self._made = True


def _record(start_s: Any, text: Any) -> Record | None:
    try:
        return Record.of(int(start_s), json.loads(text))
    except (TypeError, ValueError):
        return None

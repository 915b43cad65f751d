"""Copies of the planner's database, made while it runs, and put back while it does not."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from services.kit.database.address import address, shown
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound
from services.kit.lock_file import LockFile
from services.kit.state_file import Damaged, not_written
from services.kit.whole_file import replacing
from services.planner.adapters.store import checks

_OTHER = "choose another backup"


def back_up(database: Path | str, target: Path) -> None:
    """Copy the database of a planner, which may be writing to it, as it is at one moment.

    Args:
        database: `planner.database`.
        target: The copy; a file that is there is replaced once the copy is whole and checked.

    Raises:
        InvalidArgument: It is a PostgreSQL database; the message has the command that copies it.
        NotFound: There is no database yet.
        Damaged: The database is damaged; no copy is made.
        Unavailable: The disk does not take the copy.
    """
    path = _file_of(database, "pg_dump --format=custom --file={file} '{url}'", target)
    if not path.exists():
        raise NotFound.at("planner.database", f"there is no {path} yet")
    try:
        with replacing(target, mode=0o600, durable=True) as draft:
            _copy(path, draft)
            if why := checks.damage_of(draft):
                raise Damaged(path, why, checks.REMEDY)
    except OSError as error:
        raise not_written(target, error) from error
    except sqlite3.DatabaseError as error:
        raise Damaged(path, error, checks.REMEDY) from error


def restore(database: Path | str, backup: Path) -> Path | None:
    """Put a copy in the place of the database of a planner that does not run.

    Args:
        database: `planner.database`.
        backup: File written by `back_up`.

    Returns:
        Where the database that was there lies now; None: there was none.

    Raises:
        InvalidArgument: It is a PostgreSQL database; the message has the command that restores it.
        NotFound: There is no such backup.
        FailedPrecondition: A planner holds the database.
        Damaged: The backup is damaged, or no database of a planner; nothing is changed.
        Unavailable: The disk does not take the database.
    """
    path = _file_of(database, "pg_restore --clean --if-exists --dbname='{url}' {file}", backup)
    if not backup.is_file():
        raise NotFound(f"there is no backup {backup}", field="file")
    if why := checks.damage_of(backup):
        raise Damaged(backup, why, _OTHER)
    with LockFile(Path(f"{path}.lock"), "planner.database") as lock:
        if not lock.take():
            raise FailedPrecondition(
                f"planner.database: a planner is using {path}: {lock.holder()}; stop it first",
                reason="PLANNER_RUNNING",
            )
        try:
            with replacing(path, mode=0o600, durable=True) as draft:
                _copy(backup, draft)
                before = _moved_aside(path)
        except OSError as error:
            raise not_written(path, error) from error
        return before


def _file_of(database: Path | str, command: str, file: Path) -> Path:
    url = address(database, "planner.database")
    if url.get_backend_name() != "sqlite":
        raise InvalidArgument.at(
            "planner.database",
            "PostgreSQL is backed up and restored by its own tools: "
            + command.format(url=shown(url), file=file),
        )
    return Path(url.database or "")


def _copy(source: Path, target: Path) -> None:
    """Copy an SQLite database as of one moment, including its log."""
    with closing(sqlite3.connect(source)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)
        writer.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it


def _moved_aside(path: Path) -> Path | None:
    """Move a database away with its log, which would else be taken for the new one's."""
    if not path.exists():
        return None
    aside = path.with_name(f"{path.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    for suffix in ("-wal", "-shm", ""):
        part = Path(f"{path}{suffix}")
        if part.exists():
            part.rename(Path(f"{aside}{suffix}"))
    return aside

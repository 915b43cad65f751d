"""The schema of the database: brought up to date, left as a newer planner made it, or taken back.

Each migration says in `readable_from` which is the oldest revision whose planners can use what it
makes (docs/decisions/0025-back-to-an-older-planner.md).
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.environment import EnvironmentContext
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select
from sqlalchemy.exc import DBAPIError

from services.kit.errors import FailedPrecondition, InvalidArgument
from services.kit.state_file import Damaged
from services.kit.telemetry import logs
from services.planner.adapters.store import checks
from services.planner.adapters.store.tables import meta

_log = logs.get("store")

MIGRATIONS: Final = Path(__file__).with_name("migrations")
TAKEN_BACK_TO: Final = "0003"
"""The oldest revision that `take_back` knows the way to."""

_BEFORE_MIGRATIONS: Final = 1
"""`user_version` of SQLite files from before there were migrations."""

_READABLE_FROM: Final = "readable_from"
"""A key of `meta`, and a name in each migration."""


def migrate(connection: Connection, shown: str) -> None:
    """Bring the schema up to date, in the transaction that is open.

    That of a newer planner stays as it is where this one can use it.

    Args:
        connection: To the database.
        shown: Its address, for errors; of an SQLite database the file.

    Raises:
        Damaged: The file is damaged.
        FailedPrecondition: This planner cannot use the schema.
    """
    scripts = _scripts(MIGRATIONS)
    *_, newest = known = _known(scripts)
    is_file = _check(connection, shown, newest=newest)
    _check_version(connection, shown)
    before = _revision(connection)
    if before and before not in known:
        _check_readable(connection, shown, before, newest)
    elif before != newest:
        _run(connection, scripts, lambda at, _: scripts._upgrade_revs(newest, at))  # noqa: SLF001
        _write_readable_from(connection, scripts.get_revision(newest).module.readable_from)
        if is_file:
            checks.fill(connection)
    if is_file:
        checks.keep(connection)


def take_back(connection: Connection, shown: str, revision: str) -> str:
    """Make the schema one of an older planner, in the transaction that is open.

    Args:
        connection: To the database.
        shown: Its address, for errors; of an SQLite database the file.
        revision: The older planner's.

    Returns:
        The revision that it had; the one it has now where there was nothing to do.

    Raises:
        Damaged: The file is damaged.
        InvalidArgument: There is no such revision, or no way back to it.
        FailedPrecondition: The schema is older than that, or unknown.
    """
    is_file = _check(connection, shown)
    scripts = _scripts(MIGRATIONS)
    known, before = _known(scripts), _revision(connection)
    back_to = known[known.index(TAKEN_BACK_TO) :]
    if revision not in back_to:
        raise InvalidArgument.at("revision", f"must be one of {', '.join(back_to)}, got {revision}")
    if before not in known or known.index(before) < known.index(revision):
        raise FailedPrecondition(
            f"planner.database: the schema of {shown} is {before or 'none'}: it cannot be taken "
            f"back to {revision}"
        )
    if before != revision:
        _run(connection, scripts, lambda at, _: scripts._downgrade_revs(revision, at))  # noqa: SLF001
        _write_readable_from(connection, scripts.get_revision(revision).module.readable_from)
        if is_file:
            checks.fill(connection)
    return before


def _check(connection: Connection, file: str, newest: str = "") -> bool:
    """Return whether the database is a file; it is not damaged.

    A large one is not looked at as a whole here where its schema is the `newest`, so that nothing
    rewrites its rows: the store does so meanwhile.
    """
    if connection.dialect.name != "sqlite":
        return False
    path = Path(file)
    try:
        part = bool(newest) and checks.is_large(path) and _revision(connection) == newest
    except DBAPIError:  # of a page that it cannot read: the check says which
        part = False
    if why := checks.damage(connection, newest=part):
        raise Damaged(path, why, checks.REMEDY)
    return True


def _check_version(connection: Connection, shown: str) -> None:
    """Check the mark that SQLite files bore before there were migrations."""
    if connection.dialect.name != "sqlite" or inspect(connection).has_table("alembic_version"):
        return
    found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if found not in (0, _BEFORE_MIGRATIONS):
        raise FailedPrecondition(
            f"planner.database: {shown} was written by another planner than this (schema version "
            f"{found}); use a newer one, or move the database away to start with an empty one"
        )


def _check_readable(connection: Connection, shown: str, found: str, newest: str) -> None:
    query = select(meta.c.value).where(meta.c.key == _READABLE_FROM)
    value = connection.scalar(query)
    if value is None or value.decode() > newest:
        raise FailedPrecondition(
            f"planner.database: {shown} was written by a newer planner than this (schema {found}, "
            f"this one knows {newest}); take it back with the newer one's "
            f"`cinquefoil planner downgrade {newest}`, use a newer one, or move the database away "
            "to start with an empty one"
        )
    _log.warning("the schema is a newer planner's, and stays", schema=found, known=newest)


def _write_readable_from(connection: Connection, revision: str) -> None:
    connection.execute(meta.delete().where(meta.c.key == _READABLE_FROM))
    columns = {"key": _READABLE_FROM, "value": revision.encode()}
    connection.execute(meta.insert().values(columns))


@cache
def _scripts(folder: Path) -> ScriptDirectory:
    """Read the migrations, once: `alembic.command` would import each of them for each call."""
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def _run(
    connection: Connection, scripts: ScriptDirectory, steps: Callable[[Any, Any], list[Any]]
) -> None:
    """Run migrations as `alembic.command` does."""
    with EnvironmentContext(Config(attributes={"connection": connection}), scripts, fn=steps):
        scripts.run_env()


def _known(scripts: ScriptDirectory) -> list[str]:
    """Return the revisions that this planner knows, oldest first."""
    return [script.revision for script in scripts.walk_revisions()][::-1]


def _revision(connection: Connection) -> str:
    """Return the schema's revision; "": it has none yet."""
    return MigrationContext.configure(connection).get_current_revision() or ""

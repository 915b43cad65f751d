"""The batch service's database, of both kinds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres, running


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """An empty database."""
    if request.param == "sqlite":
        return tmp_path / "batch.sqlite3"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()

"""Where the database is, and what is made of one that is already there."""

import re
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Outcome, PlanState, RoutingTable
from services.kit.clock import RealClock
from services.kit.database.address import address, shown
from services.kit.database.connection import _engine
from services.kit.errors import FailedPrecondition, InvalidArgument, Unavailable
from services.kit.lock_file import LockFile
from services.kit.rpc.record_mapping import to_message
from services.planner.adapters.store import open_store, schema
from services.planner.adapters.store.leadership import FileLock, Leadership
from services.planner.adapters.store.opening import downgrade
from services.planner.adapters.store.tables import metadata, put
from services.planner.adapters.wire.convert import routing_to
from services.planner.core.accounting.account import Account, Spent
from services.planner.core.accounting.counters import EnergyCounters
from tests.support.planner.stored_plans import GPUS, PLAN
from tests.support.postgres import Postgres

BEFORE_MIGRATIONS = """
CREATE TABLE plans (
    version    INTEGER PRIMARY KEY AUTOINCREMENT,
    state      INTEGER NOT NULL,
    created_at TEXT    NOT NULL,
    strategy   TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    failure    TEXT    NOT NULL DEFAULT '',
    payload    BLOB    NOT NULL
) STRICT;
CREATE INDEX plans_by_state ON plans (state);
CREATE TABLE outcomes (
    version      INTEGER PRIMARY KEY REFERENCES plans (version),
    since        TEXT    NOT NULL,
    active_s     REAL    NOT NULL,
    requests     INTEGER NOT NULL,
    energy_j     REAL    NOT NULL,
    carbon_gco2e REAL    NOT NULL,
    latency_s    TEXT    NOT NULL
) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT;
PRAGMA user_version = 1;
"""


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A database as the planner wrote it before there were migrations."""
    path = tmp_path / "planner.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(BEFORE_MIGRATIONS)
    created = "2026-03-01T12:00:00.250000+00:00"
    payload = to_message(PLAN, plan_pb2.Plan).SerializeToString()
    connection.executemany(
        "INSERT INTO plans VALUES (?, ?, ?, 'exact', 'because', ?, ?)",
        [(1, 5, created, "step 1", payload), (2, 3, created, "", payload)],
    )
    connection.execute(
        "INSERT INTO outcomes VALUES (2, ?, 12.5, 7, 100.0, 0.5, '{\"digits\": 0.25}')", (created,)
    )
    routing = routing_to(RoutingTable(41, 2, ())).SerializeToString()
    account = '{"energy_j": 5.0, "carbon_gco2e": 1.0, "meters_j": {"GPU-a": 9.0}}'
    gpus = '[["node-a", "GPU-a", "a100-40gb"]]'
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [("routing", routing), ("account", account), ("gpus", gpus)],
    )
    connection.commit()
    connection.close()
    return path


async def test_a_file_from_before_migrations_is_taken_over(old_file: Path) -> None:
    async with open_store(old_file) as store:
        failed, active = await store.plan(1), await store.plan(2)
        added = await store.add(PLAN, GPUS)
        routing, account, gpus = (
            await store.routing(),
            await store.pages.account(),
            await store.gpus(),
        )

    assert (failed.state, failed.failure) == (PlanState.FAILED, "step 1")
    assert (active.state, active.segments) == (PlanState.ACTIVE, PLAN.segments)
    since = datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
    assert active.outcome == Outcome(12.5, 7, 100.0, 0.5, {"digits": 0.25}, since=since)
    assert added.version == 3
    assert routing == RoutingTable(41, 2, ())
    assert account == Account(
        Spent(5.0, 1.0), {"GPU-a": EnergyCounters(0.0, 0.0, 9.0, models=None)}
    )
    assert gpus == GPUS


async def test_a_file_that_was_taken_over_is_opened_again(old_file: Path) -> None:
    for _ in range(2):
        async with open_store(old_file) as store:
            assert (await store.plan(2)).state is PlanState.ACTIVE


async def test_an_older_planner_would_refuse_the_file(tmp_path: Path) -> None:
    """An older planner looks at `user_version`, and reads 1 only."""
    path = tmp_path / "planner.sqlite3"
    async with open_store(path):
        pass
    connection = sqlite3.connect(path)
    found = connection.execute("PRAGMA user_version").fetchone()
    connection.close()

    assert found == (2,)


async def test_an_unknown_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(FailedPrecondition, match=r"\(schema version 99\)"):
        async with open_store(path):
            pass


async def test_the_schema_of_a_newer_planner_is_refused(database: Path | str) -> None:
    async with open_store(database) as store, store.connection.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        await put(connection, "readable_from", b"9999")

    with pytest.raises(
        FailedPrecondition,
        match=r"newer planner than this \(schema 9999, .*planner downgrade \d{4}",
    ):
        async with open_store(database):
            pass


NEWEST = max(file.name[1:5] for file in (schema.MIGRATIONS / "versions").glob("v*.py"))
NEWER = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, readable_from = "9000", "{newest}", "{newest}"
def upgrade():
    op.add_column("plans", sa.Column("later", sa.Text))
def downgrade():
    op.drop_column("plans", "later")
"""


def test_every_migration_says_who_reads_it_and_how_it_is_taken_back() -> None:
    """Both since 0004; a planner whose newest migration does not say it cannot start."""
    for file in (schema.MIGRATIONS / "versions").glob("v*.py"):
        source = file.read_text()
        assert "\nreadable_from = " in source, file
        assert file.name < "v0004" or "\ndef downgrade()" in source, file


async def test_a_planner_that_looks_at_the_lease_does_not_wait_for_the_leaders_transaction(
    tmp_path: Path,
) -> None:
    """The leader does not wait for it either: it only reads, and sees at once who leads."""
    path = tmp_path / "planner.sqlite3"
    async with open_store(path) as leader, leader.connection.transaction():
        with pytest.raises(FailedPrecondition, match=re.escape(leader.leadership.holder)):
            async with open_store(path, patience_s=0.0):
                pass


async def test_a_planner_that_looks_reads_the_lease_again_only_once_it_was_written(
    tmp_path: Path,
) -> None:
    """A leader's write shows at the next look, and between two writes nothing is read."""
    path = tmp_path / "planner.sqlite3"
    engine = _engine(address(path, "planner.database"), "standby")
    standby = Leadership(FileLock(LockFile(tmp_path / "lock", "planner.database")), "", RealClock())
    async with open_store(path) as leader, engine.connect() as connection:
        first = await standby._stored(connection)
        again = await standby._stored(connection)
        await leader.renew()
        renewed = await standby._stored(connection)

    assert again is first
    assert renewed == leader.leadership.lease != first


async def test_a_planner_that_waits_takes_a_file_that_is_being_made_for_no_damage(
    tmp_path: Path,
) -> None:
    """Two planners start together: the first has the lock, and its file is empty still."""
    path, lock = tmp_path / "planner.sqlite3", LockFile(tmp_path / "planner.sqlite3.lock", "s")
    assert lock.take()
    path.touch()

    with pytest.raises(FailedPrecondition, match="another planner is using"):
        async with open_store(path, patience_s=0.0):
            pass
    lock.release()


async def test_a_newer_schema_is_used_where_its_migrations_say_so(
    database: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner of the next release adds a column; this one works beside it; the next returns."""
    newer = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, newer)
    (newer / "versions" / "v9000_newer.py").write_text(NEWER.format(newest=NEWEST))
    with monkeypatch.context() as next_release:
        next_release.setattr(schema, "MIGRATIONS", newer)
        async with open_store(database) as store:
            await store.add(PLAN, GPUS)
    async with open_store(database) as store:
        await store.activate(1, datetime.now(UTC))
        await store.add(PLAN, GPUS)
    with monkeypatch.context() as next_release:
        next_release.setattr(schema, "MIGRATIONS", newer)
        async with open_store(database) as store:
            assert (await store.plan(1)).state is PlanState.ACTIVE
            assert (await store.plan()).version == 2


async def test_a_schema_is_taken_back_and_brought_up_again(database: Path | str) -> None:
    """0003 is that of planners without checksums: what they write has none, nor is it missed."""
    async with open_store(database) as store:
        await store.add(PLAN, GPUS)

    assert await downgrade(database, "0003") == NEWEST
    assert await downgrade(database, "0003") == "0003"

    async with open_store(database) as store:
        assert (await store.plan()).segments == PLAN.segments


async def test_no_schema_is_taken_back_below_a_running_planner(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    async with open_store(path):
        with pytest.raises(FailedPrecondition, match="another planner is using"):
            await downgrade(path, "0003", patience_s=0.0)


@pytest.mark.parametrize(
    ("revision", "message"),
    [("0001", "must be one of 0003, 0004, .*got 0001"), ("x", "got x")],
)
async def test_there_is_no_way_back_to_what_is_not_known(
    tmp_path: Path, revision: str, message: str
) -> None:
    path = tmp_path / "planner.sqlite3"
    async with open_store(path):
        pass
    with pytest.raises(InvalidArgument, match=message):
        await downgrade(path, revision)


async def test_migrations_lead_to_the_tables_that_are_used(database: Path | str) -> None:
    """Alembic compares what the migrations made with what the code expects."""
    async with open_store(database) as store, store.connection.transaction() as connection:
        differences = await connection.run_sync(
            lambda plain: compare_metadata(MigrationContext.configure(plain), metadata)
        )

    assert differences == []


async def test_every_commit_reaches_the_disk(tmp_path: Path) -> None:
    """WAL with synchronous=FULL (2) syncs the log at each commit; NORMAL would not."""
    path = tmp_path / "planner.sqlite3"
    async with open_store(path) as store, store.connection.transaction() as connection:
        pragmas = ("synchronous", "journal_mode", "foreign_keys")
        found = [await connection.scalar(text(f"PRAGMA {name}")) for name in pragmas]

    assert found == [2, "wal", 1]


async def test_postgresql_commits_synchronously_whatever_the_server_prefers(
    postgres: Postgres,
) -> None:
    url = postgres.database()
    async with open_store(url) as store, store.connection.transaction() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "on"


async def test_a_database_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"planner\.database: ") as caught:
        async with open_store(f"postgresql://me:secret@/plans?host={tmp_path}"):
            pass

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "driver", "seen"),
    [
        (Path("out/p.sqlite3"), "sqlite+aiosqlite", "out/p.sqlite3"),
        ("sqlite:///out/p.sqlite3", "sqlite+aiosqlite", "out/p.sqlite3"),
        ("postgresql://me:pw@db:5433/plans", "postgresql+asyncpg", "postgresql://me@db:5433/plans"),
        ("postgresql:///plans?password=pw", "postgresql+asyncpg", "postgresql:///plans"),
        ("postgresql+psycopg://db/plans", "postgresql+asyncpg", "postgresql://db/plans"),
    ],
)
def test_an_address_names_its_driver_and_is_shown_without_secrets(
    given: Path | str, driver: str, seen: str
) -> None:
    url = address(given, "planner.database")

    assert (url.drivername, shown(url)) == (driver, seen)


def test_the_ssl_mode_goes_by_the_drivers_name() -> None:
    assert address("postgresql://db/plans?sslmode=require", "planner.database").query == {
        "ssl": "require"
    }


@pytest.mark.parametrize("given", ["mysql://me:pw@db/plans", "postgresql://me:pw@db:port/plans"])
def test_an_address_that_cannot_be_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(InvalidArgument, match=r"planner\.database: ") as caught:
        address(given, "planner.database")

    assert "pw" not in str(caught.value)

"""The planner's database: damage is noticed, and a backup brings everything back."""

import os
import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cinquefoil.planner.v1.records import Outcome
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound, ServiceError
from services.kit.state_file import Damaged
from services.planner.adapters.store import checks, open_store
from services.planner.adapters.store.backup import back_up, restore
from services.planner.core.accounting.account import Account, Spent
from services.planner.core.accounting.accountant import Page
from services.planner.core.accounting.entries import EntryKey, Figures
from services.planner.core.plan import Pin
from tests.support.planner.stored_plans import GPUS, NOW, PLAN

FIRST = NOW.replace(hour=0)
ENTRIES = {
    EntryKey(FIRST.replace(hour=hour), "US-CAL", "node-a", "digits"): Figures(energy_j=hour + 0.5)
    for hour in range(24)
}
OUTCOME = Outcome(12.5, 7, 100.0, 0.5, {"digits": 0.25}, since=datetime(2026, 3, 1, 12, tzinfo=UTC))


async def written(path: Path, plans: int = 3) -> None:
    """Write plans, an outcome, a pin and an account."""
    async with open_store(path) as store:
        for _ in range(plans):
            await store.add(PLAN, GPUS)
        await store.pin.save(Pin(2, "somebody"))
        await store.pages.save(Page(Account(Spent(5.0, 1.0), page=1), ENTRIES), 1, OUTCOME)


def read(path: Path) -> bytes:
    """Return a file's content."""
    return path.read_bytes()


def put(path: Path, content: bytes) -> None:
    """Replace a file's content."""
    path.write_bytes(content)


def rows(path: Path) -> list[object]:
    """Return all that a database holds."""
    with closing(sqlite3.connect(path)) as connection:
        names = ("plans", "outcomes", "meta", "account_hours", "alembic_version")
        return [connection.execute(f"SELECT * FROM {name}").fetchall() for name in names]  # noqa: S608


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path for a database."""
    return tmp_path / "planner.sqlite3"


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Flip a bit, cut the end off, or put zeros in the middle."""
    start = draw.randrange(len(content))
    how = draw.randrange(4)
    if how == 0:
        return content[:start]
    if how == 1:
        end = min(start + draw.choice((1, 16, 512, 4096)), len(content))
        return content[:start] + bytes(end - start) + content[end:]
    return content[:start] + bytes([content[start] ^ 1 << draw.randrange(8)]) + content[start + 1 :]


async def test_damage_is_noticed_or_changes_nothing(path: Path) -> None:
    """40 files, each damaged somewhere: never other rows."""
    await written(path)
    content, whole = read(path), rows(path)
    draw = random.Random(7)
    noticed = 0
    for _ in range(40):
        put(path, damaged(content, draw))
        if checks.damage_of(path):
            noticed += 1
        else:
            assert rows(path) == whole
    assert noticed > 10


async def test_a_planner_refuses_a_damaged_file_in_a_sentence_or_reads_what_was_written(
    path: Path,
) -> None:
    await written(path)
    content = read(path)
    draw = random.Random(11)
    for _ in range(6):
        put(path, damaged(content, draw))
        try:
            async with open_store(path) as store:
                assert await store.pin() == Pin(2, "somebody")
                assert (await store.plan(3)).segments == PLAN.segments
        except ServiceError as error:
            assert str(path) in error.message or "planner.database" in error.message  # noqa: PT017


async def test_old_rows_of_a_large_file_are_looked_at_while_the_planner_leads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of plans takes 15 s to look at, which a switch-over cannot wait for."""
    await written(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE plans SET reason = 'another' WHERE version = 1")
    monkeypatch.setattr(checks, "_LARGE_BYTES", 0)
    monkeypatch.setattr(checks, "_NEWEST", 2)

    async def lead() -> None:
        async with open_store(path) as store:
            while True:
                await store.pin()

    with pytest.raises(Damaged, match="1 rows of plans"):
        await lead()


async def test_a_planner_ends_at_once_while_a_large_file_is_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search stops with it, and what was cut short is no damage."""
    await written(path)
    monkeypatch.setattr(checks, "_LARGE_BYTES", 0)
    monkeypatch.setattr(checks, "_STEPS", 1)

    async with open_store(path) as store:
        assert await store.pin() == Pin(2, "somebody")


async def test_a_changed_value_is_refused_with_what_to_do(path: Path) -> None:
    """The page makes sense to SQLite; it is the row that was not written so."""
    await written(path)
    put(path, read(path).replace(b"somebody", b"nobody12"))

    with pytest.raises(Damaged, match=r"1 rows of meta .*; restore a backup with `cinquefoil"):
        async with open_store(path):
            pass


async def test_a_schema_that_sqlite_cannot_even_quote_is_refused(path: Path) -> None:
    await written(path)
    put(path, read(path).replace(b"failure TEXT NOT NULL", b"failure TEXT NOT NU\xceL"))

    assert checks.damage_of(path)
    with pytest.raises(Damaged, match="restore a backup"):
        async with open_store(path):
            pass


async def test_a_file_of_no_database_and_an_empty_one_are_refused(path: Path) -> None:
    for content in (bytes(8192), b"no database" * 1000, b""):
        put(path, content)
        with pytest.raises(Damaged, match="restore a backup"):
            async with open_store(path):
                pass


async def test_every_write_has_its_checksum(path: Path) -> None:
    """A row that is changed or added to has its checksum, too."""
    await written(path)
    async with open_store(path) as store:
        await store.pin.save(None)
        await store.pages.save(Page(Account(page=2), ENTRIES), 1, OUTCOME)
        await store.add(PLAN, GPUS)

    assert checks.damage_of(path) == ""


async def test_a_backup_made_under_writes_brings_plans_pin_and_account_back(
    path: Path, tmp_path: Path
) -> None:
    """The drill: back up while the planner writes, destroy, restore, open."""
    await written(path, plans=50)
    backup = tmp_path / "kept" / "backup.sqlite3"
    async with open_store(path) as store:
        await store.add(PLAN, GPUS)  # in the log only
        back_up(path, backup)
        await store.add(PLAN, GPUS)
    put(path, os.urandom(len(read(path))))

    before = restore(path, backup)

    assert before is not None
    assert before.name.startswith("planner.sqlite3.before-2")
    async with open_store(path) as store:
        assert (await store.plan(51)).segments == PLAN.segments
        with pytest.raises(NotFound):
            await store.plan(52)
        assert await store.pin() == Pin(2, "somebody")
        assert (await store.pages.account()).total == Spent(5.0, 1.0)
        found = await store.pages.read(FIRST, FIRST + timedelta(days=1))
    assert dict(found) == ENTRIES
    assert {each.name for each in backup.parent.iterdir()} == {"backup.sqlite3"}


async def test_a_running_planner_a_damaged_backup_and_a_foreign_file_change_nothing(
    path: Path, tmp_path: Path
) -> None:
    await written(path)
    backup = tmp_path / "backup"
    back_up(path, backup)
    async with open_store(path):
        with pytest.raises(
            FailedPrecondition, match=rf"a planner is using .*process {os.getpid()} "
        ):
            restore(path, backup)
    whole = rows(path)
    put(backup, read(backup).replace(b"somebody", b"nobody12"))
    with pytest.raises(Damaged, match="choose another backup"):
        restore(path, backup)
    sqlite3.connect(backup.with_name("foreign")).close()
    with pytest.raises(Damaged, match="no planner's database"):
        restore(path, backup.with_name("foreign"))
    with pytest.raises(NotFound, match="no backup"):
        restore(path, tmp_path / "missing")

    assert rows(path) == whole


def test_a_postgresql_database_is_named_its_own_tools() -> None:
    url = "postgresql://user:secret@host/plans"

    with pytest.raises(InvalidArgument, match=r"pg_dump --format=custom --file=b .post") as saving:
        back_up(url, Path("b"))
    with pytest.raises(InvalidArgument, match="pg_restore --clean --if-exists") as restoring:
        restore(url, Path("b"))

    assert "secret" not in saving.value.message + restoring.value.message

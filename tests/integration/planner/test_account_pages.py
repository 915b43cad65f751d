"""Pages of the account add up in the database: SQLite and PostgreSQL alike."""

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from cinquefoil.planner.v1.records import Outcome
from services.kit.clock import RealClock
from services.planner.adapters import prometheus
from services.planner.adapters.store import Rejected, Store, open_store, opening, rows
from services.planner.control.accounting_writer import AccountingWriter
from services.planner.core.accounting.account import Account, Spent, Tokens
from services.planner.core.accounting.accountant import Page
from services.planner.core.accounting.counters import EnergyCounters, ModelEnergy
from services.planner.core.accounting.entries import EntryKey, Figures, Grouping
from services.planner.core.accounting.moved import Moved, MovedKey
from services.planner.core.accounting.site import Site
from services.planner.core.load_report import LoadReport
from tests.support.planner.stored_plans import GPUS, PLAN

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
NEXT = HOUR + timedelta(hours=1)
ENTRIES = {
    EntryKey(HOUR, "Z", "a", ""): Figures(energy_j=5.0, idle_j=4.0, unattributed_j=1.0),
    EntryKey(HOUR, "Z", "a", "m"): Figures(energy_j=10.0, base_energy_j=30.0, requests=7),
    EntryKey(HOUR, "Z", "b", "m"): Figures(energy_j=1.5, requests=2),
    EntryKey(HOUR, "Y", "c", "n"): Figures(energy_j=2.5, embodied_gco2e=0.25),
    EntryKey(HOUR, "", "", "m"): Figures(input_tokens=2**40, output_tokens=3),
    EntryKey(NEXT, "Y", "c", "n"): Figures(energy_j=100.0),
}
OUTCOME = Outcome(since=HOUR)


@pytest.fixture
async def store(database: Path | str) -> AsyncIterator[Store]:
    async with open_store(database) as opened:
        yield opened


def page(number: int) -> Page:
    return Page(Account(Spent(number, 0.0), page=number), ENTRIES)


async def test_entries_come_back_as_they_were_and_pages_add_up(store: Store) -> None:
    """An entry of two pages is the sum of both, in every figure."""
    for number in (1, 2):
        await store.pages.save(page(number), 0, OUTCOME)

    found = dict(await store.pages.read(HOUR, NEXT + timedelta(hours=1)))

    assert found == {key: figures + figures for key, figures in ENTRIES.items()}


async def test_requests_between_regions_add_up_and_go_with_their_hours(store: Store) -> None:
    """As entries do: pages add up, and those before the retention are deleted."""
    moved = {
        MovedKey(HOUR, "m", "home", "peer"): Moved(2, 5.0, 0.5),
        MovedKey(NEXT, "m", "peer", "home"): Moved(3, 7.0, 0.25),
    }
    for number in (1, 2, 2):
        await store.pages.save(Page(Account(page=number), ENTRIES, moved), 0, OUTCOME)
    found = await store.pages.moved(HOUR, NEXT + timedelta(hours=1))
    await store.pages.save(Page(Account(page=3)), 0, OUTCOME, keep_from=NEXT)
    kept = await store.pages.moved(HOUR, NEXT + timedelta(hours=1))

    assert found == {key: each + each for key, each in moved.items()}
    assert list(kept) == [MovedKey(NEXT, "m", "peer", "home")]


async def test_a_page_written_twice_is_written_once(store: Store) -> None:
    """The commit was done and the connection broke before its answer: it is written again."""
    for number in (1, 1, 2, 1):
        await store.pages.save(page(number), 0, OUTCOME)

    total = sum((each for _, each in await store.pages.read(HOUR, NEXT)), Figures())

    assert total.energy_j == 2 * 19.0
    assert (await store.pages.account()).page == 2


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        (Figures(requests=2**64), OUTCOME),
        (Figures(energy_j=math.nan), OUTCOME),
        (Figures(), Outcome(since=HOUR, requests=2**64)),
        (Figures(), Outcome(since=HOUR, latency_s={"m": math.inf})),
    ],
    ids=["huge", "nan", "huge outcome", "infinite latency"],
)
async def test_what_no_column_can_hold_is_rejected_and_nothing_of_it_is_written(
    store: Store, figures: Figures, outcome: Outcome
) -> None:
    """A page is written whole or not at all: one such figure would spoil every sum."""
    await store.add(PLAN, GPUS)
    key = EntryKey(HOUR, "Z", "a", "n")

    with pytest.raises(Rejected):
        await store.pages.save(Page(Account(page=1), {**ENTRIES, key: figures}), 1, outcome)

    assert await store.pages.read(HOUR, NEXT) == []


async def test_a_sheet_that_the_database_refuses_is_dropped_and_its_energy_booked_later(
    store: Store,
) -> None:
    """The sheet is not tried again for ever: plans become active, and the next sheet is written."""
    for _ in range(2):
        await store.add(PLAN, GPUS)
    dropped = prometheus.DROPPED_SHEETS._value.get()
    writer = AccountingWriter(store, RealClock(), site, {})
    writer.book("a", metered(0.0))
    await writer.activate(1)
    writer.book("a", metered(50.0))
    writer.answered(LoadReport("r", 1, 1.0, {}, 2**64, {}))
    await writer.activate(2)
    writer.book("a", metered(70.0))
    await writer.save()
    active = await store.active()

    assert prometheus.DROPPED_SHEETS._value.get() - dropped == 1
    assert (await store.pages.account()).total.energy_j == 70.0
    assert active is not None
    assert active.version == 2


def site(node: str) -> Site:
    """Return a node whose GPU's limits are unknown."""
    return Site(node, "Z", 1.0, 100.0)


def metered(total_j: float) -> dict[str, EnergyCounters]:
    return {"GPU-a": EnergyCounters(1.0, HOUR.timestamp(), total_j)}


async def test_hours_are_added_up_by_model_node_or_zone(store: Store) -> None:
    """Tokens are no node's and no zone's, and left out there."""
    await store.pages.save(page(1), 0, OUTCOME)

    by_model = dict(await store.pages.read(HOUR, NEXT, "model"))
    by_node = dict(await store.pages.read(HOUR, NEXT, "node"))
    by_zone = dict(await store.pages.read(HOUR, NEXT, "zone"))

    assert by_model == {
        EntryKey(HOUR, "", "", ""): ENTRIES[EntryKey(HOUR, "Z", "a", "")],
        EntryKey(HOUR, "", "", "m"): Figures(
            energy_j=11.5, base_energy_j=30.0, requests=9, input_tokens=2**40, output_tokens=3
        ),
        EntryKey(HOUR, "", "", "n"): ENTRIES[EntryKey(HOUR, "Y", "c", "n")],
    }
    assert {key: each.energy_j for key, each in by_node.items()} == {
        EntryKey(HOUR, "Z", "a", ""): 15.0,
        EntryKey(HOUR, "Z", "b", ""): 1.5,
        EntryKey(HOUR, "Y", "c", ""): 2.5,
    }
    assert {key.zone: each.energy_j for key, each in by_zone.items()} == {"Y": 2.5, "Z": 16.5}


@pytest.mark.parametrize("by", ["", "model", "node", "zone"])
async def test_entries_are_read_in_order_of_their_keys(store: Store, by: Grouping) -> None:
    """Hours first, then what they are added up by: a reader may take a page at a time."""
    late_first = Page(Account(page=1), dict(reversed(ENTRIES.items())))
    await store.pages.save(late_first, 0, OUTCOME)

    keys = [key for key, _ in await store.pages.read(HOUR, NEXT + timedelta(hours=1), by)]

    assert keys == sorted(keys)
    assert [key.hour for key in keys].count(NEXT) == 1


async def test_entries_are_written_in_order_of_their_keys(tmp_path: Path) -> None:
    """Two planners take the rows of an hour in one order, so that neither waits for the other."""
    async with open_store(tmp_path / "planner.sqlite3") as store:
        late_first = Page(Account(page=1), dict(reversed(ENTRIES.items())))
        await store.pages.save(late_first, 0, OUTCOME)
    with create_engine(f"sqlite:///{tmp_path / 'planner.sqlite3'}").connect() as connection:
        rows_read = connection.execute(
            text("SELECT zone, node, model FROM account_hours ORDER BY rowid")
        ).all()

    assert [tuple(row) for row in rows_read] == [key[1:] for key in sorted(ENTRIES)]


async def test_hours_that_are_too_old_are_forgotten(store: Store) -> None:
    """Hours before the retention go with the page that is written."""
    await store.pages.save(page(1), 0, OUTCOME)
    assert await store.pages.oldest() == HOUR

    await store.pages.save(Page(Account(page=2)), 0, OUTCOME, keep_from=NEXT)

    assert await store.pages.oldest() == NEXT
    assert [key.hour for key, _ in await store.pages.read(HOUR, NEXT + timedelta(hours=1))] == [
        NEXT
    ]


async def test_a_database_of_before_hours_keeps_its_total(tmp_path: Path) -> None:
    """The planner of before wrote totals and meters; hours begin with the first page."""
    path = tmp_path / "planner.sqlite3"
    account = '{"energy_j": 5.0, "carbon_gco2e": 1.0, "meters_j": {"GPU-a": 9.0}}'
    with create_engine(f"sqlite:///{path}").begin() as connection:
        config = Config()
        config.set_main_option(
            "script_location", str(opening.__file__).replace("opening.py", "migrations")
        )
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO meta VALUES ('account', :it)"), {"it": account.encode()}
        )

    async with open_store(path) as store:
        before = await store.pages.account()
        await store.pages.save(page(1), 0, OUTCOME)
        found = await store.pages.read(HOUR, NEXT)

    assert before == Account(Spent(5.0, 1.0), {"GPU-a": EnergyCounters(0.0, 0.0, 9.0, models=None)})
    assert len(found) == 5


async def test_a_name_of_the_older_form_s_field_is_a_name(store: Store) -> None:
    """Agents choose the names of GPUs, operators those of models."""
    used = EnergyCounters(1.0, 2.0, 9.0, models={"meters_j": ModelEnergy(2.0, 3.0, 1)})
    account = Account(Spent(5.0, 1.0), {"meters_j": used}, page=1)
    await store.pages.save(Page(account, ENTRIES), 0, OUTCOME)

    assert await store.pages.account() == account


def test_an_account_is_encoded_as_it_is_whatever_was_encoded_before() -> None:
    """Of GPUs that report, that come and that go; names are any text."""
    first = EnergyCounters(1.0, 2.0, 9.0, models={'a"b': ModelEnergy(2.0, 3.0, 1)}, method="é")
    accounts = [
        Account(Spent(5.0, 1.0), {"GPU-1": first, 'GPU-"2': first}, page=1),
        Account(Spent(6.0, 1.5), {'GPU-"2': first, "GPU-1": replace(first, at_s=3.0)}, page=2),
        Account(
            Spent(6.0, 1.5), {"GPU-3": replace(first, models=None)}, {"r": {"m": Tokens(1, 2)}}
        ),
        Account(),
    ]
    encode = rows.AccountEncoder()

    assert [rows.account_of(encode(account)) for account in accounts] == accounts

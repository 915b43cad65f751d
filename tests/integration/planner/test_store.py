"""The planner's store reads back all that was written: SQLite and PostgreSQL alike."""

import asyncio
import math
import os
import pickle
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentState
from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Outcome, Plan, PlanState, RoutingTable
from services.kit.config import Objective
from services.kit.errors import Cancelled, FailedPrecondition, NotFound, Unavailable
from services.kit.rpc.record_mapping import from_message
from services.planner.adapters.store import Deposed, Store, open_store, rows
from services.planner.adapters.store.leadership import FileLock
from services.planner.adapters.store.store import ReadAhead
from services.planner.adapters.store.tables import put
from services.planner.control.leading import Leading
from services.planner.core import lease
from services.planner.core.accounting.account import Account, Spent, Tokens
from services.planner.core.accounting.accountant import Page
from services.planner.core.accounting.counters import EnergyCounters, ModelEnergy
from services.planner.core.decide import Snapshot
from services.planner.core.model import Gpu, Period
from services.planner.core.online_search.profile_corrections import Beliefs, Cell
from services.planner.core.plan import Pin
from tests.support.gpuagent.transactions import InstantClock
from tests.support.planner.fleets import model, pool
from tests.support.planner.stored_plans import GPUS, NOW, PLAN, SPEC
from tests.support.postgres import Postgres

MODEL = model("digits")
SNAPSHOT = Snapshot(
    gpus=(Gpu("GPU-a", "node-a", pool(), (Placement("1g.5gb", 3),), clock_mhz=900),),
    models=(MODEL,),
    running=(Segment(SPEC, SegmentState.READY, ("h:1", "h:2")),),
    shares={"s-1": 1.0},
    objective=Objective(carbon_weight=0.25),
    strategy="exact",
    forecast=(Period(3600.0, {"US-CAL": 210.0}),),
)


@pytest.fixture
async def store(database: Path | str) -> AsyncIterator[Store]:
    async with open_store(database) as opened:
        yield opened


async def test_a_plan_comes_back_as_it_was_written(store: Store) -> None:
    written = await store.add(PLAN, GPUS)

    assert written == replace(PLAN, version=1)
    assert await store.plan(1) == written
    assert await store.plan() == written
    assert await store.gpus() == GPUS


async def test_an_unproven_gap_stays_absent(store: Store) -> None:
    await store.add(replace(PLAN, prediction=replace(PLAN.prediction, gap=None)), GPUS)

    assert (await store.plan()).prediction.gap is None


async def test_a_plan_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="there is no plan yet"):
        await store.plan()
    with pytest.raises(NotFound, match="no plan has version 7"):
        await store.plan(7)


async def test_activating_a_plan_supersedes_the_one_before(store: Store) -> None:
    for _ in range(3):
        await store.add(PLAN, GPUS)
    await store.activate(1, NOW)
    await store.set_state(2, PlanState.FAILED, "step 2.1.1: UNAVAILABLE: gone")
    await store.activate(3, NOW)

    plans = await store.newest_first(10)

    assert [plan.state for plan in plans] == [
        PlanState.ACTIVE,
        PlanState.FAILED,
        PlanState.SUPERSEDED,
    ]
    assert plans[1].failure == "step 2.1.1: UNAVAILABLE: gone"
    active = await store.active()
    assert active is not None
    assert (active.version, active.outcome) == (3, Outcome(since=NOW))


async def test_pages_go_downwards_from_a_version(store: Store) -> None:
    for _ in range(5):
        await store.add(PLAN, GPUS)

    assert [plan.version for plan in await store.newest_first(2)] == [5, 4]
    assert [plan.version for plan in await store.newest_first(2, before=4)] == [3, 2]
    assert [plan.version for plan in await store.newest_first(2, before=2)] == [1]


async def test_outcome_and_account_are_written_together(store: Store) -> None:
    await store.add(PLAN, GPUS)
    await store.activate(1, NOW)
    outcome = Outcome(12.5, 700, 1500.0, 0.09, {"digits": 0.08}, since=NOW)
    counters = EnergyCounters(7.5, 8.25, 9000.0, 100.0, {"digits": ModelEnergy(50.0, 2.0, 7)})
    account = Account(Spent(2500.0, 0.15), {"GPU-a": counters}, {"r-1": {"chat": Tokens(3, 4)}}, 1)

    await store.pages.save(Page(account), 1, outcome)

    assert (await store.plan(1)).outcome == outcome
    assert await store.pages.account() == account


async def test_beliefs_are_kept_as_they_were(store: Store) -> None:
    """Read back, they correct the same."""
    cells = [Cell("digits", "small", "a100-40gb", name) for name in ("1g.5gb", "3g.20gb")]
    beliefs = Beliefs().measured(cells[0], 1.25, 1.1).measured(cells[0], 1.2, 1.3).waited("m", 0.7)
    none_yet = await store.beliefs()
    await store.save_beliefs(beliefs)
    found = await store.beliefs()

    assert none_yet == Beliefs()
    assert found == beliefs
    assert found.corrections(cells) == beliefs.corrections(cells)


async def test_an_account_without_a_plan_is_kept_too(store: Store) -> None:
    account = Account(Spent(1.0, 2.0), page=1)

    await store.pages.save(Page(account), 0, Outcome(since=NOW))

    assert await store.pages.account() == account


async def test_writers_that_come_together_take_turns(store: Store) -> None:
    """Two transactions on one connection would otherwise be begun inside each other."""
    table = RoutingTable(1, 1, ())
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(store.add(PLAN, GPUS))
            tasks.create_task(store.save_routing(replace(table, revision=number)))

    assert len(await store.newest_first(100)) == 20


async def test_who_hangs_up_leaves_the_database_usable(store: Store) -> None:
    """Readers and writers are cancelled at every step of their way; nothing is left half-done."""
    await store.add(PLAN, GPUS)
    async with asyncio.TaskGroup() as tasks:
        for pause in range(24):
            caller = tasks.create_task(_one_call(store, pause))
            for _ in range(pause):
                await asyncio.sleep(0)
            caller.cancel()
    before = len(await store.newest_first(100))

    await store.add(PLAN, GPUS)

    assert len(await store.newest_first(100)) == before + 1


async def _one_call(store: Store, number: int) -> None:
    if number % 2:
        await store.plan()
    else:
        await store.add(PLAN, GPUS)


async def test_state_survives_closing_and_versions_go_on(database: Path | str) -> None:
    async with open_store(database) as store:
        await store.add(PLAN, GPUS)
        await store.save_routing(RoutingTable(41, 1, ()))
    async with open_store(database) as store:
        assert await store.routing() == RoutingTable(41, 1, ())
        assert (await store.add(PLAN, GPUS)).version == 2


def test_what_was_written_survives_a_killed_process(database: Path | str) -> None:
    """The process ends by SIGKILL right after `add` returns."""
    code = """
import asyncio, os, pickle, signal, sys
from services.planner.adapters.store import open_store
database, plan = pickle.load(sys.stdin.buffer)
async def main():
    async with open_store(database) as store:
        await store.add(plan, {})
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    given = pickle.dumps((database, PLAN))
    killed = subprocess.run(
        [sys.executable, "-c", code], input=given, stdout=subprocess.DEVNULL, check=False
    )
    assert killed.returncode == -9

    async def read() -> Plan:
        async with open_store(database) as store:
            return await store.plan()

    assert asyncio.run(read()) == replace(PLAN, version=1)


async def test_plans_after_a_version_come_in_order(store: Store) -> None:
    for _ in range(5):
        await store.add(PLAN, GPUS)

    assert [plan.version for plan in await store.after(0, 2)] == [1, 2]
    assert [plan.version for plan in await store.after(2, 10)] == [3, 4, 5]
    assert await store.after(5, 10) == []


async def test_what_a_plan_was_made_from_comes_back(store: Store) -> None:
    """With the deployment's profiles, and without models that were not there then."""
    new = replace(MODEL, name="new")
    await store.add(PLAN, GPUS, SNAPSHOT)

    found = await store.snapshot(1, (new, replace(MODEL, demand_rps=1.0)))

    assert replace(found, models=()) == replace(SNAPSHOT, models=())
    assert [(each.name, each.demand_rps) for each in found.models] == [("digits", 500.0)]
    assert found.models[0].variants == MODEL.variants


async def test_a_plan_without_its_inputs_says_so(store: Store) -> None:
    await store.add(PLAN, GPUS)

    with pytest.raises(NotFound, match="plan 1 was made before inputs were kept"):
        await store.snapshot(1, ())
    with pytest.raises(NotFound, match="no plan has version 2"):
        await store.snapshot(2, ())


async def test_the_pin_is_kept_until_it_is_taken_off(database: Path | str) -> None:
    async with open_store(database) as store:
        assert await store.pin() is None
        await store.pin.save(Pin(3, "operator/ada"))
    async with open_store(database) as store:
        assert await store.pin() == Pin(3, "operator/ada")
        await store.pin.save(None)
        assert await store.pin() is None


async def test_a_pin_of_before_it_was_noted_who_holds_it_is_kept(store: Store) -> None:
    async with store.connection.transaction() as connection:
        await put(connection, "pinned", b"3")

    assert await store.pin() == Pin(3)


async def test_activating_ends_what_was_left_unfinished_before(store: Store) -> None:
    """A plan whose writing failed half-way must not look as if it were still rolling."""
    for _ in range(4):
        await store.add(PLAN, GPUS)
    await store.set_state(2, PlanState.ROLLING)
    await store.activate(3, NOW)

    plans = await store.after(0, 10)

    assert [plan.state for plan in plans] == [
        PlanState.FAILED,
        PlanState.FAILED,
        PlanState.ACTIVE,
        PlanState.PROPOSED,
    ]
    assert plans[0].failure == "a later plan took its place"


async def test_a_second_planner_is_refused_until_the_first_lets_go(database: Path | str) -> None:
    async with open_store(database):
        with pytest.raises(
            FailedPrecondition, match=rf"another planner is using .*:{os.getpid()}-"
        ):
            async with open_store(database, patience_s=0.0):
                pass
    async with open_store(database, patience_s=0.0) as store:
        await store.add(PLAN, GPUS)


async def test_a_planner_that_hangs_is_replaced_and_writes_no_more(
    database: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung planner holds the lock but does not renew its lease: the next one breaks the lock."""
    monkeypatch.setattr(lease, "EXPIRES_S", 0.3)
    async with open_store(database) as hung:
        await hung.add(PLAN, GPUS)
        async with open_store(database, patience_s=math.inf) as next_one:
            with pytest.raises(Unavailable):
                await hung.add(PLAN, GPUS)
            with pytest.raises(Deposed, match="leads in term 2"):
                await hung.renew()
            await next_one.renew()
            assert [plan.version for plan in await next_one.newest_first(5)] == [1]
        assert next_one.leadership.lease.term == 2


async def test_a_planner_that_renews_as_its_lock_is_broken_leads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner that broke the lock leads once the lease has expired again: two would act."""
    monkeypatch.setattr(lease, "EXPIRES_S", 0.3)
    path, broken = tmp_path / "planner.sqlite3", asyncio.Event()
    break_open = FileLock.break_open

    async def broken_and_renewed(lock: FileLock, connection: AsyncConnection) -> None:
        await break_open(lock, connection)
        await hung.renew()
        broken.set()

    monkeypatch.setattr(FileLock, "break_open", broken_and_renewed)
    async with open_store(path) as hung:
        opening = open_store(path, patience_s=math.inf)
        standby = asyncio.create_task(opening.__aenter__())
        await broken.wait()
        renewed_s = time.monotonic()
        next_one = await standby
        assert time.monotonic() - renewed_s >= 0.3
        with pytest.raises(Deposed, match="leads in term 2"):
            await hung.renew()
        await opening.__aexit__(None, None, None)
    assert next_one.leadership.lease.term == 2


async def test_who_stands_by_leaves_a_planner_alone_that_renews_its_lease(
    database: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "EXPIRES_S", 0.5)
    stop = asyncio.Event()

    async def stand_by() -> None:
        async with open_store(database, patience_s=math.inf, stop=stop):
            pass

    async with open_store(database) as leader:
        waiting = asyncio.create_task(stand_by())
        for _ in range(8):
            await asyncio.sleep(0.1)
            await leader.renew()
        stop.set()
        with pytest.raises(Cancelled):
            await waiting
        await leader.add(PLAN, GPUS)


async def test_who_stands_by_has_read_the_newest_plan_when_it_leads(
    database: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby reads each plan as soon as it is stored; to lead then it need not read any."""
    read = asyncio.Semaphore(0)
    stop = asyncio.Event()

    def noted(message: plan_pb2.Plan, kind: type[Plan]) -> Plan:
        read.release()
        return from_message(message, kind)

    async def stand_by() -> list[Plan]:
        async with open_store(database, patience_s=math.inf, stop=stop) as store:
            return await store.newest_first(1)

    rows.planned.cache_clear()
    monkeypatch.setattr(rows, "from_message", noted)
    async with open_store(database) as leader:
        waiting = asyncio.create_task(stand_by())
        for number in range(1, 3):
            newest = await leader.add(replace(PLAN, reason=f"stands by {number}"), GPUS)
            async with asyncio.timeout(45):
                await read.acquire()
    assert await waiting == [newest]
    assert read.locked()


@pytest.mark.parametrize(
    "spoil", ["UPDATE plans SET payload = :bad", "ALTER TABLE plans RENAME TO others"]
)
async def test_who_stands_by_waits_on_where_the_newest_plan_cannot_be_read(
    database: Path | str, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """Damaged, or another version's: a leader gets the error, a standby keeps waiting."""
    tried, stop = asyncio.Semaphore(0), asyncio.Event()
    ahead = ReadAhead.__call__

    async def noted(self: ReadAhead, connection: AsyncConnection) -> None:
        try:
            await ahead(self, connection)
        finally:
            tried.release()

    async def stand_by() -> None:
        async with open_store(database, patience_s=math.inf, stop=stop):
            pass

    monkeypatch.setattr(ReadAhead, "__call__", noted)
    async with open_store(database) as leader:
        await leader.add(PLAN, GPUS)
        async with leader.connection.transaction() as connection:
            values = {"bad": b"no plan"} if ":bad" in spoil else {}
            await connection.execute(text(spoil), values)
        waiting = asyncio.create_task(stand_by())
        async with asyncio.timeout(45):
            for _ in range(3):  # the second begins after the first has been survived
                await tried.acquire()
                async with leader.connection.transaction() as connection:  # something new to read
                    await leader.leadership.renew(connection)
        assert not waiting.done()
        stop.set()
        with pytest.raises(Cancelled):
            await waiting


async def test_a_folder_that_cannot_be_written_is_named_with_its_setting(tmp_path: Path) -> None:
    """Where its lock cannot be made a planner ends with a sentence; a folder lies in its place."""
    (tmp_path / "planner.sqlite3.lock").mkdir()
    with pytest.raises(FailedPrecondition, match=r"^planner\.database: .* cannot be written: "):
        async with open_store(tmp_path / "planner.sqlite3"):
            pass


async def test_a_full_disk_can_be_read(tmp_path: Path) -> None:
    """Stored plans are answered, and more are added when there is room."""
    async with open_store(tmp_path / "planner.sqlite3") as store:
        await store.add(PLAN, GPUS)
        with _full(store), pytest.raises(Unavailable, match=r"planner\.database: .*is full"):
            await store.add(PLAN, GPUS)
        again = Mock()
        event.listen(store.connection._engine.sync_engine, "connect", again)

        assert [plan.version for plan in await store.newest_first(5)] == [1]
        assert (await store.add(PLAN, GPUS)).version == 2
        again.assert_not_called()


async def test_a_leader_on_a_full_disk_leads_on_until_another_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader cannot renew, so it may not act; no other can either, until there is room."""
    path = tmp_path / "planner.sqlite3"
    monkeypatch.setattr(lease, "ACTS_S", 0.0)
    monkeypatch.setattr(lease, "EXPIRES_S", 0.0)
    async with open_store(path) as store:
        leading = Leading(store, InstantClock(), steps_down=True)
        with _full(store):
            keeping = asyncio.create_task(leading.keep())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(leading.may_act(), 0.1)
            assert not keeping.done()

            async with open_store(path, patience_s=math.inf):
                with pytest.raises(Deposed, match="leads in term 2"):
                    await keeping


async def test_a_renewal_that_is_not_stored_prolongs_nothing(tmp_path: Path) -> None:
    """A planner that connects again, and cannot commit its lease, may not act by it."""

    def fail(_: object) -> None:
        raise OSError("no room")

    async with open_store(tmp_path / "planner.sqlite3") as store:
        tenure, now_s = store.leadership.tenure, time.monotonic()
        before_s = tenure.lasts_s(now_s)
        event.listen(store.connection._engine.sync_engine, "commit", fail)
        for _ in range(2):  # the first ends the connection, the second makes another
            with pytest.raises(Unavailable, match="no room"):
                await store.plan()

        assert tenure.lasts_s(now_s) == before_s


async def test_a_broken_connection_is_reported_and_then_healed(postgres: Postgres) -> None:
    """PostgreSQL restarts: one call fails as Unavailable, the next one has a new connection."""
    async with open_store(postgres.database()) as store:
        await store.add(PLAN, GPUS)
        await asyncio.to_thread(postgres.break_lines)
        with pytest.raises(Unavailable, match=r"planner\.database: "):
            await store.add(PLAN, GPUS)

        assert (await store.add(PLAN, GPUS)).version == 2


async def test_a_database_that_takes_no_writes_is_written_again(
    postgres: Postgres,
) -> None:
    """Failed over from: what was refused is not stored, and nothing stored is lost."""
    stored = 0
    async with open_store(postgres.database()) as store:

        async def add_on() -> None:
            nonlocal stored
            while True:  # the server's processes read their settings a little later
                stored = (await store.add(PLAN, GPUS)).version

        await asyncio.to_thread(postgres.set_writable, writable=False)
        try:
            with pytest.raises(Unavailable, match=r"planner\.database: .*read-only"):
                await add_on()
        finally:
            await asyncio.to_thread(postgres.set_writable, writable=True)
        while True:
            try:
                again = await store.add(PLAN, GPUS)
            except Unavailable:
                continue
            break
        found = await store.newest_first(10**6)

    assert (again.version, len(found)) == (stored + 1, stored + 1)


async def test_a_planner_that_lost_its_line_to_another_does_not_write(postgres: Postgres) -> None:
    """The lock goes with the connection: never do two planners write in turns."""
    url = postgres.database()
    async with open_store(url, patience_s=0.0) as first:
        await first.add(PLAN, GPUS)
        await asyncio.to_thread(postgres.break_lines)
        async with open_store(url) as second:
            with pytest.raises(Unavailable):
                await first.plan()
            with pytest.raises(Deposed, match="leads in term 2"):
                await first.add(PLAN, GPUS)

            assert len(await second.newest_first(10)) == 1


@contextmanager
def _full(store: Store) -> Iterator[None]:
    """Make each statement that writes fail as on a full disk while the block runs."""

    def refuse(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise OperationalError(statement, None, error)

    engine = store.connection._engine.sync_engine
    event.listen(engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", refuse)

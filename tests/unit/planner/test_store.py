"""What the planner has written, it finds again."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.kit.errors import FailedPrecondition, NotFound
from services.kit.mig import Placement
from services.planner.accounting import Account, Spent
from services.planner.plan import (
    Inputs,
    Outcome,
    Plan,
    PlannedSegment,
    PlanState,
    Prediction,
    SegmentSpec,
)
from services.planner.routing import RoutingTable
from services.planner.store import Store, open_store

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = SegmentSpec("s-1", "digits", "small", 8, 2, "GPU-a", Placement("1g.5gb", 3))
PLAN = Plan(
    version=0,
    created_at=NOW,
    state=PlanState.PROPOSED,
    strategy="exact",
    reason="first plan: 1 node(s), 1 GPU(s)",
    inputs=Inputs({"US-CAL": 210.0}, {"digits": 60.0}, {"a100-40gb": 1}, 0.5),
    segments=(PlannedSegment(SPEC, "node-a", 1.0, 444.0, 0.018),),
    prediction=Prediction(1.5, {"digits": 0.97}, {"digits": 0.1}, {}, 120.0, 25.2, 1, 0.0, 0.02),
    steps=2,
    slice_changes=1,
)
GPUS = {("node-a", "GPU-a"): "a100-40gb"}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "state" / "planner.sqlite3") as opened:
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
    assert (active.version, active.outcome) == (3, Outcome(NOW))


async def test_pages_go_downwards_from_a_version(store: Store) -> None:
    for _ in range(5):
        await store.add(PLAN, GPUS)

    assert [plan.version for plan in await store.newest_first(2)] == [5, 4]
    assert [plan.version for plan in await store.newest_first(2, before=4)] == [3, 2]
    assert [plan.version for plan in await store.newest_first(2, before=2)] == [1]


async def test_outcome_and_account_are_written_together(store: Store) -> None:
    await store.add(PLAN, GPUS)
    await store.activate(1, NOW)
    outcome = Outcome(NOW, 12.5, 700, 1500.0, 0.09, {"digits": 0.08})
    account = Account(Spent(2500.0, 0.15), {"GPU-a": 9000.0})

    await store.save_outcome(1, outcome, account)

    assert (await store.plan(1)).outcome == outcome
    assert await store.account() == account


async def test_an_account_without_a_plan_is_kept_too(store: Store) -> None:
    account = Account(Spent(1.0, 2.0), {"GPU-a": 3.0})

    await store.save_outcome(0, Outcome(NOW), account)

    assert await store.account() == account


async def test_writers_that_come_together_take_turns(store: Store) -> None:
    """Two transactions on one connection would otherwise be begun inside each other."""
    table = RoutingTable(1, 1, ())
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(store.add(PLAN, GPUS))
            tasks.create_task(store.save_routing(replace(table, revision=number)))

    assert len(await store.newest_first(100)) == 20


async def test_a_cancelled_writer_leaves_the_database_writable(store: Store) -> None:
    async with asyncio.TaskGroup() as tasks:
        for pause in range(12):
            writer = tasks.create_task(store.add(PLAN, GPUS))
            for _ in range(pause):
                await asyncio.sleep(0)
            writer.cancel()
    before = len(await store.newest_first(100))

    await store.add(PLAN, GPUS)

    assert len(await store.newest_first(100)) == before + 1


async def test_state_survives_closing_and_versions_go_on(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    async with open_store(path) as store:
        await store.add(PLAN, GPUS)
        await store.save_routing(RoutingTable(41, 1, ()))
    async with open_store(path) as store:
        assert await store.routing() == RoutingTable(41, 1, ())
        assert (await store.add(PLAN, GPUS)).version == 2


def test_what_was_written_survives_a_killed_process(tmp_path: Path) -> None:
    """The process ends by SIGKILL right after `add` returns."""
    path = tmp_path / "planner.sqlite3"
    code = f"""
import asyncio, os, pickle, signal, sys
from pathlib import Path
from services.planner.store import open_store
async def main():
    async with open_store(Path({str(path)!r})) as store:
        await store.add(pickle.load(sys.stdin.buffer), {{}})
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    killed = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(PLAN), check=False)
    assert killed.returncode == -9

    async def read() -> Plan:
        async with open_store(path) as store:
            return await store.plan()

    assert asyncio.run(read()) == replace(PLAN, version=1)


async def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(FailedPrecondition, match="schema version 99, this planner reads 1"):
        async with open_store(path):
            pass


async def test_every_commit_reaches_the_disk(store: Store, tmp_path: Path) -> None:
    """WAL with synchronous=FULL (2) syncs the log at each commit; NORMAL would not."""
    rows = await store._connection.execute_fetchall("PRAGMA synchronous")
    modes = await store._connection.execute_fetchall("PRAGMA journal_mode")

    assert [row[0] for row in rows] == [2]
    assert [row[0] for row in modes] == ["wal"]

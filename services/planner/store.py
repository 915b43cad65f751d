"""Plans, their outcomes and the planner's own state in one SQLite file.

What a method writes is on the disk when it returns (WAL, synchronous=FULL): nothing is announced
before it is written, and `kill -9` loses nothing that was announced.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiosqlite

from cinquefoil.planner.v1 import plan_pb2
from services.kit.errors import FailedPrecondition, NotFound
from services.planner.accounting import Account, Spent
from services.planner.convert import plan_from, plan_to, routing_from, routing_to
from services.planner.plan import Outcome, Plan, PlanState
from services.planner.routing import RoutingTable

SCHEMA_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE plans (
    version    INTEGER PRIMARY KEY AUTOINCREMENT,
    state      INTEGER NOT NULL,
    created_at TEXT    NOT NULL,
    strategy   TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    failure    TEXT    NOT NULL DEFAULT '',
    payload    BLOB    NOT NULL  -- cinquefoil.planner.v1.Plan without version, state, failure
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
"""

_SELECT: Final = """
SELECT plans.version, state, failure, payload,
       since, active_s, requests, energy_j, carbon_gco2e, latency_s
FROM plans LEFT JOIN outcomes USING (version)
"""


class Store:
    """The open database.

    All share one connection, so they take turns: a reader must not see what is not committed yet.
    """

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    async def add(self, plan: Plan, gpus: Mapping[tuple[str, str], str]) -> Plan:
        """Write a new plan and return it with its version.

        Args:
            plan: The plan; its version is ignored.
            gpus: GPU type by (node, GPU UUID): the fleet it was made for.
        """
        payload = plan_to(replace(plan, version=0, failure="", outcome=None)).SerializeToString()
        async with self._transaction():
            rows = await self._connection.execute_fetchall(
                "INSERT INTO plans (state, created_at, strategy, reason, payload)"
                " VALUES (?, ?, ?, ?, ?) RETURNING version",
                (plan.state, plan.created_at.isoformat(), plan.strategy, plan.reason, payload),
            )
            await self._put_meta("gpus", json.dumps([[*gpu, kind] for gpu, kind in gpus.items()]))
        return replace(plan, version=next(iter(rows))[0])

    async def set_state(self, version: int, state: PlanState, failure: str = "") -> None:
        """Write where a plan stands."""
        async with self._transaction():
            await self._connection.execute(
                "UPDATE plans SET state = ?, failure = ? WHERE version = ?",
                (state, failure, version),
            )

    async def activate(self, version: int, since: datetime) -> None:
        """Make a plan the active one; the one before is superseded in the same transaction."""
        async with self._transaction():
            await self._connection.execute(
                "UPDATE plans SET state = ? WHERE state = ?",
                (PlanState.SUPERSEDED, PlanState.ACTIVE),
            )
            await self._connection.execute(
                "UPDATE plans SET state = ? WHERE version = ?", (PlanState.ACTIVE, version)
            )
            await self._put_outcome(version, Outcome(since))

    async def plan(self, version: int = 0) -> Plan:
        """Return a plan; version 0: the newest.

        Raises:
            NotFound: There is none.
        """
        clause, values = ("WHERE plans.version = ?", (version,)) if version else ("", ())
        found = await self._plans(f"{clause} ORDER BY plans.version DESC LIMIT 1", values)
        if not found:
            what = f"no plan has version {version}" if version else "there is no plan yet"
            raise NotFound(what, field="version")
        return found[0]

    async def active(self) -> Plan | None:
        """Return the active plan, if there is one."""
        found = await self._plans("WHERE state = ? LIMIT 1", (PlanState.ACTIVE,))
        return found[0] if found else None

    async def newest_first(self, limit: int, before: int | None = None) -> list[Plan]:
        """Return at most `limit` plans, newest first, with versions below `before`."""
        clause, values = ("WHERE plans.version < ?", (before,)) if before is not None else ("", ())
        return await self._plans(f"{clause} ORDER BY plans.version DESC LIMIT ?", (*values, limit))

    async def gpus(self) -> dict[tuple[str, str], str]:
        """Return the fleet that the newest plan was made for: type by (node, GPU UUID)."""
        rows = json.loads(await self._meta("gpus") or "[]")
        return {(node, gpu_uuid): kind for node, gpu_uuid, kind in rows}

    async def save_outcome(self, version: int, outcome: Outcome, account: Account) -> None:
        """Write what was seen of a plan (version 0: of none) and the fleet's account together."""
        async with self._transaction():
            if version:
                await self._put_outcome(version, outcome)
            await self._put_meta("account", _account_to(account))

    async def account(self) -> Account:
        """Return the fleet's account; an empty one where none was written."""
        value = await self._meta("account")
        return Account() if value is None else _account_from(value)

    async def save_routing(self, table: RoutingTable) -> None:
        """Write the routing table in force."""
        async with self._transaction():
            await self._put_meta("routing", routing_to(table).SerializeToString())

    async def routing(self) -> RoutingTable | None:
        """Return the routing table last in force, if there was one."""
        value = await self._meta("routing")
        return None if value is None else routing_from(plan_pb2.RoutingTable.FromString(value))

    async def _plans(self, clause: str, values: tuple[int, ...]) -> list[Plan]:
        async with self._turn:
            rows = await self._connection.execute_fetchall(_SELECT + clause, values)
        return [_plan_from(row) for row in rows]

    async def _put_outcome(self, version: int, outcome: Outcome) -> None:
        await self._connection.execute(
            "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                version,
                outcome.since.isoformat(),
                outcome.active_s,
                outcome.requests,
                outcome.energy_j,
                outcome.carbon_gco2e,
                json.dumps(dict(outcome.latency_s)),
            ),
        )

    async def _put_meta(self, key: str, value: bytes | str) -> None:
        await self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    async def _meta(self, key: str) -> Any:
        async with self._turn:
            rows = await self._connection.execute_fetchall(
                "SELECT value FROM meta WHERE key = ?", (key,)
            )
        return next((row[0] for row in rows), None)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with self._turn:
            try:
                await self._connection.execute("BEGIN IMMEDIATE")
                yield
                await self._connection.execute("COMMIT")
            except BaseException:  # a cancelled writer must not leave half a change either
                with suppress(sqlite3.OperationalError):  # nothing was begun, or all is committed
                    await self._connection.execute("ROLLBACK")
                raise


@asynccontextmanager
async def open_store(path: Path) -> AsyncIterator[Store]:
    """Open the database while the block runs; it is made where there is none.

    Raises:
        FailedPrecondition: The file has another schema version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute("PRAGMA foreign_keys = ON")
        await _check_schema(connection, path)
        yield Store(connection)


async def _check_schema(connection: aiosqlite.Connection, path: Path) -> None:
    rows = await connection.execute_fetchall("PRAGMA user_version")
    found = next(iter(rows))[0]
    if found == 0:
        await connection.executescript(
            f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    elif found != SCHEMA_VERSION:
        raise FailedPrecondition(
            f"planner.database: {path} has schema version {found}, this planner reads "
            f"{SCHEMA_VERSION}; move the file away to begin anew"
        )


def _plan_from(row: aiosqlite.Row) -> Plan:
    version, state, failure, payload, *seen = row
    outcome = None if seen[0] is None else _outcome_from(seen)
    plan = plan_from(plan_pb2.Plan.FromString(payload), outcome)
    return replace(plan, version=version, state=PlanState(state), failure=failure)


def _outcome_from(columns: Sequence[Any]) -> Outcome:
    since, active_s, requests, energy_j, carbon_gco2e, latency_s = columns
    return Outcome(
        since=datetime.fromisoformat(since),
        active_s=active_s,
        requests=requests,
        energy_j=energy_j,
        carbon_gco2e=carbon_gco2e,
        latency_s=json.loads(latency_s),
    )


def _account_to(account: Account) -> str:
    return json.dumps(
        {
            "energy_j": account.total.energy_j,
            "carbon_gco2e": account.total.carbon_gco2e,
            "meters_j": dict(account.meters_j),
        }
    )


def _account_from(value: str) -> Account:
    data = json.loads(value)
    return Account(Spent(data["energy_j"], data["carbon_gco2e"]), data["meters_j"])

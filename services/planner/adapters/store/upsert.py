"""Rows that are written whether or not they are there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from services.planner.adapters.store.tables import meta, outcomes
from services.planner.core.plan import Outcome


def insert_into(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that knows `on_conflict_do_update`; both databases can, each its way."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    insert: postgresql.Insert | sqlite.Insert = dialect.insert(table)
    return insert


async def put(connection: AsyncConnection, key: str, value: bytes) -> None:
    """Write a value of the planner's own state."""
    await _upsert(connection, meta, {"key": key}, {"value": value})


async def put_outcome(connection: AsyncConnection, version: int, outcome: Outcome) -> None:
    """Write what was seen of a plan."""
    await _upsert(connection, outcomes, {"version": version}, asdict(outcome))


async def _upsert(
    connection: AsyncConnection, table: Table, key: dict[str, Any], values: dict[str, Any]
) -> None:
    insert = insert_into(connection, table).values(**key, **values)
    await connection.execute(insert.on_conflict_do_update(index_elements=[*key], set_=values))

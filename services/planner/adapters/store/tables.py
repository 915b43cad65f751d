"""Tables as the newest migration leaves them, and functions that write their rows."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeDecorator

from cinquefoil.planner.v1.records import Outcome
from services.kit import row_checksums
from services.planner.core.accounting.entries import COUNTS, NAMES


class Utc(TypeDecorator[datetime]):
    """An instant, UTC; SQLite's own type has no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the value to write."""
        del dialect
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the value as it was written."""
        del dialect
        return None if value is None else value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
    }
)


def _crc() -> Column[int]:
    """Return the column of a row's checksum; NULL in PostgreSQL, which has its own."""
    return Column(row_checksums.COLUMN, BigInteger)


plans = Table(
    "plans",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Integer, nullable=False, index=True),
    Column("created_at", Utc, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("failure", Text, nullable=False),
    # cinquefoil.planner.v1.Plan without version, state, failure and outcome.
    Column("payload", LargeBinary, nullable=False),
    # What the plan was made from: JSON, compressed by zlib; NULL: made before it was kept.
    Column("snapshot", LargeBinary),
    _crc(),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("version", BigInteger, ForeignKey("plans.version"), primary_key=True),
    Column("since", Utc, nullable=False),
    Column("active_s", Double, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("carbon_gco2e", Double, nullable=False),
    Column("latency_s", JSON, nullable=False),
    Column("accuracy", JSON, nullable=False),
    Column("answered", JSON, nullable=False),
    _crc(),
)

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    _crc(),
)

# services.planner.core.accounting.entries: a Key, and the Figures of its entry.
account_hours = Table(
    "account_hours",
    metadata,
    Column("hour", Utc, primary_key=True),
    *(Column(name, Text, primary_key=True) for name in ("zone", "node", "model")),
    *(Column(name, BigInteger if name in COUNTS else Double, nullable=False) for name in NAMES),
    _crc(),
)

# services.planner.core.accounting.moved: a MovedKey, and its Moved.
account_regions = Table(
    "account_regions",
    metadata,
    Column("hour", Utc, primary_key=True),
    *(Column(name, Text, primary_key=True) for name in ("model", "origin", "emitted_in")),
    Column("requests", BigInteger, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("carbon_gco2e", Double, nullable=False),
    _crc(),
)

# services.planner.core.known_nodes: nodes that joined, and what operators ordered of nodes.
nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("zone", Text, nullable=False),
    Column("address", Text, nullable=False),  # "": the deployment file has it
    Column("ordered", Text, nullable=False),  # "": nothing is
    Column("principal", Text, nullable=False),
    Column("ordered_at", Utc),
    _crc(),
)

# services.planner.core.history: cinquefoil.planner.v1.HistoryPoint by length and start, Unix time.
history = Table(
    "history",
    metadata,
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("since_s", BigInteger, primary_key=True, autoincrement=False),
    Column("point", LargeBinary, nullable=False),
    _crc(),
)


def insert_into(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that knows `on_conflict_do_update`; both databases can, each its way."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    insert: postgresql.Insert | sqlite.Insert = dialect.insert(table)
    return insert


async def value_of(connection: AsyncConnection, key: str) -> bytes | None:
    """Return a value of the planner's own state; None: it was never written."""
    value: bytes | None = await connection.scalar(select(meta.c.value).where(meta.c.key == key))
    return value


async def put(connection: AsyncConnection, key: str, value: bytes) -> None:
    """Write a value of the planner's own state."""
    await upsert(connection, meta, {"key": key}, {"value": value})


async def put_outcome(connection: AsyncConnection, version: int, outcome: Outcome) -> None:
    """Write the outcome of a plan."""
    await upsert(connection, outcomes, {"version": version}, asdict(outcome))


async def upsert(
    connection: AsyncConnection, table: Table, key: dict[str, Any], values: dict[str, Any]
) -> None:
    """Write a row, new or over the one with its key."""
    insert = insert_into(connection, table).values(**key, **values)
    await connection.execute(insert.on_conflict_do_update(index_elements=[*key], set_=values))

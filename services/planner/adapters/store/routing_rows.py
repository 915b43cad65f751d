"""The routing table in force, as rows: a whole table, and the parts changed since.

A worker that moves changes one part in dozens; writing a whole large table for it would take longer
than sending the change to all routers. Older planners, without parts, read the whole table.
"""

from typing import Final, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import RoutingTable
from services.kit.database.connection import SharedConnection, uncancellable
from services.kit.rpc.record_mapping import from_message
from services.planner.adapters.store.tables import meta, put, value_of
from services.planner.adapters.wire.routing_bytes import EncodedTable, PartKey, RoutingEncoder

_KEY: Final = "routing"
_MOST_CHANGED: Final = 0.25
"""Largest share of the parts that are written one by one; of more, the whole table is."""


class _Stored(NamedTuple):
    """Contents of the rows. Attributes: prefix: of the keys of parts; table: with those parts."""

    prefix: str
    table: EncodedTable


class RoutingRows:
    """Rows of the table. Attributes: connection (to the database)."""

    def __init__(self, connection: SharedConnection) -> None:
        self.connection = connection
        self._encoder = RoutingEncoder()
        self._stored: _Stored | None = None  # None: it is not known what the rows say

    @uncancellable
    async def save(self, table: RoutingTable) -> None:
        """Write a table: of a large one, only the changed parts."""
        encoded = self._encoder.encoded(table)
        before, self._stored = self._stored, None
        async with self.connection.transaction() as connection:
            changed = _changed(before, encoded)
            if before is not None and changed is not None:
                prefix = before.prefix
                await put(connection, prefix, encoded.head)
                for key in changed:
                    model, start, _ = key
                    await put(connection, f"{prefix}{model}/{start}", encoded.parts[key])
            else:
                prefix = _prefix(table.term, table.revision)
                await put(connection, _KEY, encoded.whole())
                await connection.execute(
                    delete(meta).where(meta.c.key.startswith(f"{_KEY}/", autoescape=True))
                )
        self._stored = _Stored(prefix, encoded)

    @uncancellable
    async def load(self) -> RoutingTable | None:
        """Return the table last saved, if there was one."""
        async with self.connection.transaction() as connection:
            value = await value_of(connection, _KEY)
            if value is None:
                return None
            message = plan_pb2.RoutingTable.FromString(value)
            prefix = _prefix(message.term, message.revision)
            parts = await _values(connection, prefix)
        if prefix in parts:
            head = plan_pb2.RoutingTable.FromString(parts.pop(prefix))
            message.revision, message.plan_version = head.revision, head.plan_version
            message.term = head.term
        instances = {routes.model: routes.instances for routes in message.models}
        for key, part in parts.items():
            model, _, start = key.removeprefix(prefix).rpartition("/")
            changed = plan_pb2.ModelRoutes.FromString(part).instances
            for place, instance in enumerate(changed, int(start)):
                instances[model][place].CopyFrom(instance)
        return from_message(message, RoutingTable)


def _changed(before: _Stored | None, now: EncodedTable) -> list[PartKey] | None:
    """Return the changed parts; None: the table is better written as a whole."""
    if before is None or before.table.models != now.models:
        return None
    known = before.table.parts
    if known.keys() != now.parts.keys():
        return None
    found = [key for key, part in now.parts.items() if part != known[key]]
    return found if len(found) < _MOST_CHANGED * len(known) else None


def _prefix(term: int, revision: int) -> str:
    """Return the prefix of the keys of a table's parts, different for each table."""
    return f"{_KEY}/{term}.{revision}/"


async def _values(connection: AsyncConnection, prefix: str) -> dict[str, bytes]:
    """Return the values whose keys begin with `prefix`, by key."""
    query = select(meta.c.key, meta.c.value).where(meta.c.key.startswith(prefix, autoescape=True))
    return {row.key: row.value for row in await connection.execute(query)}

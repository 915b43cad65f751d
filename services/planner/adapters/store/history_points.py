"""Points of history in the database."""

import asyncio
from collections.abc import Mapping

from sqlalchemy import delete, func, select

from cinquefoil.planner.v1 import history_pb2
from cinquefoil.planner.v1.records import HistoryPoint
from services.kit.database.connection import SharedConnection, uncancellable
from services.kit.rpc.record_mapping import from_message, to_message
from services.planner.adapters.store.tables import history, upsert


class HistoryPoints:
    """Points by length and start. Every method may raise Unavailable: the database is away.

    Attributes:
        connection: The connection to the database.
    """

    def __init__(self, connection: SharedConnection) -> None:
        self.connection = connection

    @uncancellable
    async def save(
        self,
        points: Mapping[tuple[int, int], HistoryPoint],
        keep: Mapping[int, int] | None = None,
        now_s: int = 0,
    ) -> None:
        """Write points, new or over those of the same length and start, together.

        Args:
            points: By length, s, and start, Unix time, s.
            keep: The most points of each length: those farthest from now go; None: all stay.
            now_s: Now, Unix time, s.
        """
        encoded = {
            key: to_message(point, history_pb2.HistoryPoint).SerializeToString()
            for key, point in points.items()
        }
        async with self.connection.transaction() as connection:
            for (step_s, since_s), point in encoded.items():
                key = {"step_s": step_s, "since_s": since_s}
                await upsert(connection, history, key, {"point": point})
            for step_s, count in (keep or {}).items():
                of_it = history.c.step_s == step_s
                nearest = (
                    select(history.c.since_s)
                    .where(of_it)
                    .order_by(func.abs(history.c.since_s - now_s))
                    .limit(count)
                )
                farther = history.c.since_s.not_in(nearest)
                await connection.execute(delete(history).where(of_it, farther))

    async def read(self, step_s: int, since_s: int, until_s: int) -> list[HistoryPoint]:
        """Return the points of a length that start from `since_s` up to `until_s`, in order."""
        found = await self._read(step_s, since_s, until_s)
        return await asyncio.to_thread(_points, found)

    @uncancellable
    async def _read(self, step_s: int, since_s: int, until_s: int) -> list[bytes]:
        query = (
            select(history.c.point)
            .where(
                history.c.step_s == step_s,
                history.c.since_s >= since_s,
                history.c.since_s < until_s,
            )
            .order_by(history.c.since_s)
        )
        async with self.connection.transaction() as connection:
            return list((await connection.execute(query)).scalars())

    @uncancellable
    async def newest(self, step_s: int, now_s: int) -> int | None:
        """Return the start of the last point of a length up to now, Unix time, s, if any."""
        query = select(func.max(history.c.since_s)).where(
            history.c.step_s == step_s, history.c.since_s <= now_s
        )
        async with self.connection.transaction() as connection:
            found: int | None = await connection.scalar(query)
        return found


def _points(found: list[bytes]) -> list[HistoryPoint]:
    return [
        from_message(history_pb2.HistoryPoint.FromString(point), HistoryPoint) for point in found
    ]

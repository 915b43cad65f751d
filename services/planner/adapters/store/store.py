"""Plans, their outcomes and the planner's own state, in a database.

Writes are on disk when a method returns: nothing is announced before it is written, and `kill -9`
loses nothing that was announced.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import DecodeError
from pydantic import TypeAdapter
from sqlalchemy import Column, Select, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cinquefoil.planner.v1.records import (
    ChangedSetting,
    GridEvent,
    NodeOrder,
    Outcome,
    Plan,
    PlanState,
)
from services.kit.database.connection import SharedConnection, uncancellable
from services.kit.errors import NotFound, ServiceError
from services.planner.adapters.store import rows
from services.planner.adapters.store.account_pages import AccountPages
from services.planner.adapters.store.history_points import HistoryPoints
from services.planner.adapters.store.leadership import Leadership
from services.planner.adapters.store.routing_rows import RoutingRows
from services.planner.adapters.store.tables import (
    nodes,
    outcomes,
    plans,
    put,
    put_outcome,
    upsert,
    value_of,
)
from services.planner.core.accuracy_mean.ledger import GridHour
from services.planner.core.decide import Snapshot
from services.planner.core.fixed_inputs import FixedInputs
from services.planner.core.grid_signal import LastIntensity
from services.planner.core.known_nodes import JoinedNode
from services.planner.core.maintenance import Freeze
from services.planner.core.model import Model
from services.planner.core.online_search.profile_corrections import Beliefs
from services.planner.core.plan import Pin
from services.planner.core.waiting.outlook import Offer

T = TypeVar("T")

_UNFINISHED: Final = (PlanState.PROPOSED, PlanState.ROLLING)
_HIGHEST: Final = 2**63 - 1  # that a database can compare with; the wire's versions go to 2^64
_OVERTAKEN: Final = "a later plan took its place"

_COLUMNS: Final[list[Column[Any]]] = [
    *plans.c["version", "state", "failure", "payload"],
    *(column for column in outcomes.c if column.name not in ("version", "crc")),
]
_PLANS: Final = select(*_COLUMNS).select_from(plans.outerjoin(outcomes))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return a type's reader and writer, built once: that takes milliseconds."""
    return TypeAdapter(kind)


class Stored(Generic[T]):
    """A value of the planner's own state; a call returns it.

    Args:
        connection: The connection to the database.
        key: Its key in the table.
        kind: Its type, with pydantic's annotations: it is written as JSON.
        initial: Value until it is written.
    """

    def __init__(self, connection: SharedConnection, key: str, kind: Any, initial: T) -> None:
        self.connection = connection
        self._key = key
        self._json: TypeAdapter[T] = _adapter(kind)
        self._initial = initial

    @uncancellable
    async def __call__(self) -> T:
        """Return the value as it was last written."""
        async with self.connection.transaction() as connection:
            value = await value_of(connection, self._key)
        return self._initial if value is None else self._json.validate_json(value)

    @uncancellable
    async def save(self, value: T) -> None:
        """Write another value."""
        async with self.connection.transaction() as connection:
            await self.put(connection, value)

    async def put(self, connection: AsyncConnection, value: T) -> None:
        """Write another value, in the open transaction."""
        await put(connection, self._key, self._json.dump_json(value))


class Store:
    """The open database. Every method may raise Unavailable: the database is away.

    Attributes:
        connection: The connection to the database.
        pages: The fleet's account.
        history: The past as the planner saw it.
        leadership: This planner's hold of the database.
        gpus: The fleet that the newest plan was made for: type by (node, GPU UUID).
        owners: The node of each GPU, by UUID.
        fixed: The settings that the newest plan depends on; empty: unknown.
        pin: The pinned plan, and its operator.
        pinned_at: Time when it was pinned, beside it: older planners read `pin` as it is.
        freeze: The last freeze ordered, which may have ended; None: none.
        overrides: Settings changed by operators, by path.
        policies: Serving policies ordered by operators, by model.
        beliefs: Beliefs from live measurements.
        intensities: The last intensities heard, by zone.
        waiting_rooms: Rooms that models' replicas offered waiting work, by hour of the day.
        waiting_attained: Part of such a room that answers have shown there to be, by model.
        grid_hours: Hours of grid time that the price of accuracy rests on.
        grid_events: Grid events, those that are over, too.
        routing, save_routing: Return and write the routing table in force; None: there was none.
    """

    def __init__(self, connection: SharedConnection, leadership: Leadership) -> None:
        self.connection = connection
        self.leadership = leadership
        self.pages = AccountPages(connection)
        self.history = HistoryPoints(connection)
        self.gpus = Stored[dict[tuple[str, str], str]](connection, "gpus", rows.StoredGpus, {})
        self.owners = Stored[Mapping[str, str]](connection, "gpu_owners", dict[str, str], {})
        self.fixed = Stored[FixedInputs](connection, "fixed", dict[str, str], {})
        self.pin = Stored[Pin | None](connection, "pinned", rows.StoredPin, None)
        self.pinned_at = Stored[datetime | None](connection, "pinned_at", datetime | None, None)
        self.freeze = Stored[Freeze | None](connection, "freeze", Freeze | None, None)
        self.overrides = Stored[Mapping[str, ChangedSetting]](
            connection, "overrides", dict[str, ChangedSetting], {}
        )
        self.policies = Stored[Mapping[str, tuple[str, str, float | None]]](
            connection, "policies", dict[str, rows.StoredPolicy], {}
        )
        self.beliefs = Stored[Beliefs](connection, "beliefs", rows.StoredBeliefs, Beliefs())
        self.waiting_rooms = Stored[Mapping[str, Sequence[Offer | None]]](
            connection, "waiting_rooms", dict[str, tuple[Offer | None, ...]], {}
        )
        self.waiting_attained = Stored[Mapping[str, float]](
            connection, "waiting_attained", dict[str, float], {}
        )
        self.intensities = Stored[Mapping[str, LastIntensity]](
            connection, "intensities", dict[str, LastIntensity], {}
        )
        self.save_beliefs = self.beliefs.save
        self.grid_hours = Stored[tuple[GridHour, ...]](
            connection, "grid_hours", rows.StoredHours, ()
        )
        self.grid_events = Stored[tuple[GridEvent, ...]](
            connection, "grid_events", tuple[GridEvent, ...], ()
        )
        routing = RoutingRows(connection)
        self.save_routing, self.routing = routing.save, routing.load

    @uncancellable
    async def renew(self, at_least: int = 0) -> None:
        """Renew this planner's lease; its term becomes at least `at_least`.

        Raises:
            Deposed: Another planner leads.
        """
        async with self.connection.transaction() as connection:
            await self.leadership.renew(connection, at_least)

    @uncancellable
    async def check_lease(self) -> None:
        """Check, without writing, that the stored lease is this planner's.

        Raises:
            Deposed: Another planner leads.
        """
        async with self.connection.transaction():
            pass  # each transaction begins with that

    # ---- plans ---------------------------------------------------------------------------------

    @uncancellable
    async def add(
        self,
        plan: Plan,
        gpus: Mapping[tuple[str, str], str],
        snapshot: Snapshot | None = None,
        *,
        fixed: FixedInputs | None = None,
        pin: str | None = None,
    ) -> Plan:
        """Write a new plan and return it with its version.

        Args:
            plan: The plan; its version is ignored.
            gpus: GPU type by (node, GPU UUID): the fleet it was made for.
            snapshot: Snapshot that it was made from, for later explanations.
            fixed: Settings that it depends on; None: unknown.
            pin: Who holds it from now on, "": not known; None: it is not held.
        """
        values = rows.plan_row(plan)
        kept = None if snapshot is None else rows.snapshot_bytes(snapshot)
        async with self.connection.transaction() as connection:
            newest = await connection.scalar(select(func.coalesce(func.max(plans.c.version), 0)))
            version = int(newest or 0) + 1
            await connection.execute(
                plans.insert().values(version=version, snapshot=kept, **values)
            )
            await self.gpus.put(connection, dict(gpus))
            await self.fixed.put(connection, fixed or {})
            if pin is not None:
                await self.pin.put(connection, Pin(version, pin))
        return replace(plan, version=version)

    @uncancellable
    async def set_state(self, version: int, state: PlanState, failure: str = "") -> None:
        """Write the state of a plan."""
        async with self.connection.transaction() as connection:
            await connection.execute(
                update(plans).where(plans.c.version == version).values(state=state, failure=failure)
            )

    @uncancellable
    async def activate(self, version: int, since: datetime) -> None:
        """Make a plan the active one; those before it have ended, in the same transaction."""
        async with self.connection.transaction() as connection:
            await connection.execute(
                update(plans)
                .where(plans.c.state == PlanState.ACTIVE)
                .values(state=PlanState.SUPERSEDED)
            )
            await connection.execute(
                update(plans)
                .where(plans.c.state.in_(_UNFINISHED), plans.c.version < version)
                .values(state=PlanState.FAILED, failure=_OVERTAKEN)
            )
            await connection.execute(
                update(plans).where(plans.c.version == version).values(state=PlanState.ACTIVE)
            )
            await put_outcome(connection, version, Outcome(since=since))

    async def plan(self, version: int = 0) -> Plan:
        """Return a plan; version 0: the newest.

        Raises:
            NotFound: There is none.
        """
        query = _PLANS.where(plans.c.version == version) if version else _PLANS
        found = []
        if version <= _HIGHEST:
            found = await self._plans(query.order_by(plans.c.version.desc()).limit(1))
        if not found:
            what = f"no plan has version {version}" if version else "there is no plan yet"
            raise NotFound(what, field="version")
        return found[0]

    async def active(self) -> Plan | None:
        """Return the active plan, if there is one."""
        found = await self._plans(_PLANS.where(plans.c.state == PlanState.ACTIVE).limit(1))
        return found[0] if found else None

    async def newest_first(self, limit: int, before: int | None = None) -> list[Plan]:
        """Return at most `limit` plans, newest first, with versions below `before`."""
        query = _PLANS if before is None else _PLANS.where(plans.c.version < before)
        return await self._plans(query.order_by(plans.c.version.desc()).limit(limit))

    async def after(self, version: int, limit: int) -> list[Plan]:
        """Return at most `limit` plans with versions above `version`, in order of version."""
        query = _PLANS.where(plans.c.version > version)
        return await self._plans(query.order_by(plans.c.version).limit(limit))

    @uncancellable
    async def snapshot(self, version: int, models: Sequence[Model]) -> Snapshot:
        """Return the snapshot that a plan was made from.

        Args:
            version: Version of the plan.
            models: The deployment's models: profiles are not kept.

        Raises:
            NotFound: There is no such plan, or it was made before snapshots were kept.
        """
        query = select(plans.c.snapshot).where(plans.c.version == version)
        async with self.connection.transaction() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise NotFound(f"no plan has version {version}", field="version")
        if row.snapshot is None:
            raise NotFound(f"plan {version} was made before inputs were kept", field="version")
        return rows.snapshot_of(row.snapshot, models)

    # ---- the planner's own state ---------------------------------------------------------------

    @uncancellable
    async def save_node(
        self, name: str, joined: JoinedNode | None, order: NodeOrder | None
    ) -> None:
        """Write a joined node and the order about it; both None: delete the node."""
        async with self.connection.transaction() as connection:
            if joined is None and order is None:
                await connection.execute(delete(nodes).where(nodes.c.name == name))
            else:
                await upsert(connection, nodes, {"name": name}, rows.node_row(joined, order))

    @uncancellable
    async def nodes(self) -> tuple[dict[str, JoinedNode], dict[str, NodeOrder]]:
        """Return the nodes that joined, and the orders about nodes, by name."""
        async with self.connection.transaction() as connection:
            found = (await connection.execute(select(nodes))).all()
        return (
            {row.name: JoinedNode(row.name, row.zone, row.address) for row in found if row.address},
            {row.name: rows.order_of(row) for row in found if row.ordered},
        )

    # ---- inside --------------------------------------------------------------------------------

    @uncancellable
    async def _plans(self, query: Select[Any]) -> list[Plan]:
        async with self.connection.transaction() as connection:
            found = (await connection.execute(query)).all()
        return [rows.plan_of(row) for row in found]


class ReadAhead:
    """Reads each new plan before this planner leads, so that it takes over sooner."""

    def __init__(self) -> None:
        self._seen = 0

    async def __call__(self, connection: AsyncConnection) -> None:
        """Read the newest plan, if there is a new one; within a transaction."""
        newest = await connection.scalar(select(func.coalesce(func.max(plans.c.version), 0)))
        if newest != self._seen:
            self._seen = int(newest or 0)
            query = select(plans.c.payload).where(plans.c.version == self._seen)
            payload = await connection.scalar(query)
            with suppress(DecodeError, ServiceError, ValueError):  # the leader gets the error
                rows.planned(payload or b"")

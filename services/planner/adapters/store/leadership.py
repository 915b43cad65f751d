"""Leadership of one planner at a time: a lock held by its process or session, and the stored lease.

The lock makes a switch-over quick: that of a dead process is free at once, and says whose it was. A
process that was stopped, or cut off, keeps it; once its lease has expired, another planner breaks
the lock. A free lock that is not known to be the last leader's gives no right to lead before that
leader's lease has expired. A planner that has lost the lease cannot write any more: each
transaction checks the lease first. `tests/simulation/leadership_model.py` visits all that can
happen.

PostgreSQL's lock goes with a session, which can end before its planner does: for `ACTS_S` at most
two may send orders, of which each agent obeys the higher term.
"""

import asyncio
import json
import math
import os
import secrets
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, TypeVar

from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from services.kit.clock import Clock
from services.kit.database.connection import READS
from services.kit.errors import Cancelled, FailedPrecondition, Unavailable
from services.kit.lock_file import LockFile
from services.kit.telemetry import logs
from services.planner.adapters.store.tables import meta, put, value_of
from services.planner.core.lease import Lease, Tenure, Vigil

_log = logs.get("leadership")

T = TypeVar("T")

_LOCK: Final = 0x51F0  # ours among the advisory locks of a PostgreSQL database
_POLL_S: Final = 0.1
_AGAIN_S: Final = 5.0
"""Wait of a planner that lost its session, which may still have the lock, s."""

_KEY: Final = "lease"


async def _nothing(_: AsyncConnection) -> None:
    """Read nothing."""


class Deposed(Unavailable):
    """Another planner leads: this one may not act any more."""


class Renewed(Exception):
    """The last leader has renewed the lease that had expired: it may lead on."""


class FileLock:
    """A lock file beside an SQLite file; it goes with the process."""

    def __init__(self, file: LockFile) -> None:
        self._file = file

    async def take(self, _connection: AsyncConnection) -> bool:
        """Take it, which needs no connection."""
        return self._file.take()

    async def break_open(self, _connection: AsyncConnection) -> None:
        """Break it: the process that holds the old file holds nothing."""
        self._file.break_open()

    async def version(self, connection: AsyncConnection) -> object:
        """Return a number that changes with each commit of another connection."""
        raw: Any = (await connection.get_raw_connection()).driver_connection
        try:
            rows = await raw.execute_fetchall("PRAGMA data_version")
        except sqlite3.Error:
            return None  # the read that follows gets the error
        return rows[0][0]

    def proves_end(self, holder: str) -> bool:
        """Return whether the lock, which was taken, was a planner's that has ended since."""
        return self._file.ended == holder.rpartition("-")[0]


class SessionLock:
    """PostgreSQL's advisory lock; it goes with the connection."""

    async def take(self, connection: AsyncConnection) -> bool:
        """Take it for this connection."""
        query = text("SELECT pg_try_advisory_lock(:lock, hashtext(current_schema()))")
        async with connection.begin():
            return bool((await connection.execute(query, {"lock": _LOCK})).scalar_one())

    async def break_open(self, connection: AsyncConnection) -> None:
        """End the session that has it, which must be of the same role."""
        query = text(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND classid = CAST(:lock AS oid) AND objsubid = 2 AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database()) AND"
            " CAST(objid AS bigint) = CAST(hashtext(current_schema()) AS bigint) & 4294967295"
        )
        async with connection.begin():
            await connection.execute(query, {"lock": _LOCK})

    async def version(self, _connection: AsyncConnection) -> None:
        """Return None: whether another session has written is not known."""

    def proves_end(self, _holder: str) -> bool:
        """Take the end of a session for that of its planner; agents know better."""
        return True


Lock = FileLock | SessionLock
"""A lock that goes with its process or session."""


class Leadership:
    """Hold of this planner on the database.

    Attributes:
        lease: As last written; before `take`, without a holder.
        tenure: Time until which this planner may act.
    """

    def __init__(self, lock: Lock, shown: str, clock: Clock) -> None:
        """Hold nothing yet.

        Args:
            lock: The database's.
            shown: The database's address, for errors.
            clock: Time.
        """
        self.holder = f"{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(2)}"
        self.lease = Lease()
        self._lock = lock
        self._shown = shown
        self._clock = clock
        self._found = Lease()  # the last leader's, when the lock was taken
        self._overtaken: Lease | None = None  # for which the lock was broken
        self._made = False  # whether the lease's table is known to be there
        self._looked: tuple[object, Lease] | None = None  # version of the file, and its lease
        self.tenure = Tenure(clock.monotonic())

    async def take(
        self,
        connection: AsyncConnection,
        patience_s: float,
        stop: asyncio.Event,
        meanwhile: Callable[[AsyncConnection], Awaitable[None]] = _nothing,
    ) -> None:
        """Wait for the lock, and for the end of the last leader or of its lease.

        A holder whose lease has expired loses the lock.

        Args:
            connection: To the database.
            patience_s: How long to wait, s; infinite: this planner stands by.
            stop: Ends the waiting.
            meanwhile: Reads time and again while another planner leads, in a transaction of its
                own that only reads.

        Raises:
            FailedPrecondition: Another planner led for as long as `patience_s`.
            Deposed: This planner led before, and another does now.
            Cancelled: `stop` was set.
        """
        began_s, vigil, waits = self._clock.monotonic(), Vigil(), False
        self._looked = None  # another connection's versions are others
        ahead: tuple[object, Lease] | None = None  # what `meanwhile` has read
        while True:
            locked, found = await self._lock.take(connection), await self._stored(connection)
            expired = vigil.expired(found, self._clock.monotonic()) or found == self._overtaken
            if locked and (expired or self._has_ended(found.holder)):
                self._found = found
                return
            if locked and not waits:
                _log.info("waits until the last leader's lease has expired", holder=found.holder)
            waits = locked
            if stop.is_set():
                raise Cancelled("stopped while another planner led")
            waited_s = self._clock.monotonic() - began_s
            if not locked and waited_s >= (_AGAIN_S if self.lease.term else patience_s):
                holder = f" ({found.holder})" if found.holder else ""
                raise FailedPrecondition(
                    f"planner.database: another planner is using {self._shown}{holder}; "
                    "planner.standby makes this one wait"
                )
            if self.lease.term and not found.same(self.lease):
                raise self._deposed(found)
            if expired and math.isinf(patience_s):
                _log.warning("the leader does not renew its lease", holder=found.holder)
                await self._lock.break_open(connection)
                self._overtaken = found
                continue
            if found.holder and self._looked != ahead:
                ahead = self._looked
                with suppress(DBAPIError):  # the leader gets the error
                    await _read_only(connection, meanwhile)
            await self._clock.sleep(_POLL_S)

    def _has_ended(self, holder: str) -> bool:
        """Return whether the lock, which is this planner's now, shows that a leader has ended."""
        return holder in {"", self.holder} or self._lock.proves_end(holder)

    async def claim(self, connection: AsyncConnection) -> float:
        """Write the lease, in the open transaction: a new term, unless this planner has led last.

        Returns:
            Time of the request, monotonic, s, for the tenure once it is committed.

        Raises:
            Deposed: Another planner has led since this one did.
            Renewed: The last leader has renewed its lease since `take`, which is to wait again.
        """
        requested_s, stored = self._clock.monotonic(), await _read(connection)
        if self.lease.term and not stored.same(self.lease):
            raise self._deposed(stored)
        if stored != self._found:
            raise Renewed
        self.lease = stored.renewed() if self.lease.term else stored.taken(self.holder)
        await _write(connection, self.lease)
        return requested_s

    async def check(self, connection: AsyncConnection) -> None:
        """Check that this planner still leads, in the open transaction.

        Raises:
            Deposed: It does not.
        """
        stored = await _read(connection)
        if not stored.same(self.lease):
            raise self._deposed(stored)

    async def renew(self, connection: AsyncConnection, at_least: int = 0) -> None:
        """Renew the lease, in the open transaction; its term becomes at least `at_least`."""
        lease = self.lease.renewed(at_least)
        await _write(connection, lease)
        self.lease = lease

    async def _stored(self, connection: AsyncConnection) -> Lease:
        """Return the lease, in a transaction of its own; the first one where there is no table yet.

        It only reads: the holder need not wait for planners that look. What another connection has
        not changed since is not read again.
        """
        version = await self._lock.version(connection)
        if version is not None and self._looked is not None and self._looked[0] == version:
            return self._looked[1]

        async def read(connection: AsyncConnection) -> Lease:
            if not self._made:
                self._made = await connection.run_sync(
                    lambda each: inspect(each).has_table(meta.name)
                )
            return await _read(connection) if self._made else Lease()

        lease = await _read_only(connection, read)
        self._looked = version, lease  # a change in between makes the next look read again
        return lease

    def _deposed(self, stored: Lease) -> Deposed:
        return Deposed(
            f"planner.database: {stored.holder} leads in term {stored.term}", reason="NOT_LEADING"
        )


async def _read_only(
    connection: AsyncConnection, read: Callable[[AsyncConnection], Awaitable[T]]
) -> T:
    """Return the result of `read`, in its own transaction that blocks no holder."""
    await connection.execution_options(**{READS: True})
    try:
        async with connection.begin():
            return await read(connection)
    finally:
        await connection.execution_options(**{READS: False})


async def _read(connection: AsyncConnection) -> Lease:
    found = await value_of(connection, _KEY)
    return Lease() if found is None else Lease(**json.loads(found))


async def _write(connection: AsyncConnection, lease: Lease) -> None:
    await put(connection, _KEY, json.dumps(asdict(lease)).encode())

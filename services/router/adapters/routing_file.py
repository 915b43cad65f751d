"""The last routing table on disk: a router that restarts serves before a planner answers."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from services.kit.errors import Unavailable
from services.kit.state_file import read_disposable, write_json
from services.kit.telemetry import logs
from services.router.core.model import RoutingTable

_VERSION: Final = 1
_TABLE: Final = TypeAdapter(RoutingTable)

_log = logs.get("routes")


class RoutingFile:
    """Keeps a routing table.

    However old it is, it misroutes no request: a worker states its segment, which may have changed,
    when the router connects.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: RoutingTable | None = None
        self._changed = asyncio.Event()

    def read(self) -> RoutingTable | None:
        """Return the table in the file; None: there is none, or it is damaged. Blocks.

        Its term is 0: the table of any planner that has a plan supersedes it, also of one whose
        database began again.
        """
        try:
            return read_disposable(self._path, _table_of, version=_VERSION)
        except Unavailable as error:
            _log.warning("the last routing table cannot be read", error=error.message)
            return None

    def put(self, table: RoutingTable) -> None:
        """Hand a table to `keep`, which writes it."""
        self._table = table
        self._changed.set()

    async def keep(self) -> None:
        """Write each new table until cancelled."""
        well = True
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await asyncio.to_thread(self._write, self._table)
            except Unavailable as error:
                if well:
                    _log.warning("routing tables are kept in memory only", error=error.message)
                well = False
            else:
                well = True

    def _write(self, table: RoutingTable | None) -> None:
        if table is not None:
            values = {"version": _VERSION, **asdict(table)}
            write_json(self._path, values, durable=False)


def _table_of(values: Mapping[str, Any]) -> RoutingTable:
    return _TABLE.validate_python({**values, "term": 0})

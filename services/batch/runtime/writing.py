"""Writing results: many in one transaction, and the files at a batch's end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from cinquefoil.batch.v1.records import Batch, BatchState, File
from services.batch.adapters.contents import Contents
from services.batch.adapters.store import Piece, Result, Store
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("batch")

_FLUSH_S: Final = 0.05
_RETRY_S: Final = 1.0
_PAGE: Final = 500
_MOST_UNWRITTEN: Final = 1024
"""Results in memory from which on no further line is sent."""
_FILES: Final = {"output_file_id": False, "error_file_id": True}


class ResultWriter:
    """Collects results and writes them together, until they are written.

    Args:
        store: Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: list[Result] = []
        self._done: list[Piece] = []
        self._some = asyncio.Event()
        self._written = asyncio.Event()
        self._unwritten = 0

    def add(self, result: Result) -> None:
        """Note a result."""
        self._results.append(result)
        self._unwritten += 1
        self._some.set()

    async def room(self) -> None:
        """Wait while a database that takes nothing has results waiting in memory."""
        while self._unwritten >= _MOST_UNWRITTEN:
            self._written.clear()
            await self._written.wait()

    def done(self, piece: Piece) -> None:
        """Note that every line of a piece has a result."""
        self._done.append(piece)
        self._some.set()

    async def run(self) -> None:
        """Write what is noted, until cancelled; a full disk or a lost database is waited for."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what is noted."""
        self._some.clear()
        results, done = self._results, self._done
        self._results, self._done = [], []
        while results or done:
            try:
                await self._store.write(results, done)
                break
            except ServiceError as error:
                _log.warning("results wait to be written", cause=error.message)
                await asyncio.sleep(_RETRY_S)
        self._unwritten -= len(results)
        self._written.set()


async def finish(
    store: Store, contents: Contents, batch: Batch, state: BatchState, keep_s: float
) -> Batch | None:
    """Write a batch's output and error file, and end it; again from the start where interrupted.

    Args:
        store: Has its results.
        contents: Where files are.
        batch: The batch; every line that is to have a result has one.
        state: Its last state.
        keep_s: Time for which files are kept, s.
    """
    now = datetime.now(UTC)
    written: dict[str, File] = {}
    for column, failed in _FILES.items():
        id_, size = f"file-{batch.id}-{'errors' if failed else 'output'}", 0
        page = await store.results(batch.id, 0, _PAGE, failed=failed)
        if not page:
            continue
        async with contents.writing(id_) as append:
            while page:
                text = b"".join(content + b"\n" for _, content in page)
                size += len(text)
                await append(text)
                page = await store.results(batch.id, page[-1][0], _PAGE, failed=failed)
        written[column] = File(
            id=id_,
            owner=batch.owner,
            name=f"{batch.id}_{'error' if failed else 'output'}.jsonl",
            purpose="batch_output",
            size_bytes=size,
            created_at=now,
            expires_at=now + timedelta(seconds=keep_s),
        )
    return await store.end(batch.id, state, written)

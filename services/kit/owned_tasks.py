"""Tasks that an object owns, from its first to its last moment."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class OwnedTasks:
    """Base of what runs tasks of its own: enter it to start any, leave it to end them all.

    A task that fails ends the others, and the block that entered.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], None] = {}  # in order: a history repeats

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in tuple(self._running):
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, traceback)
        finally:
            await self._ended()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task; cancelling it ends it alone."""
        task = self._group.create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(lambda _: self._running.pop(task, None))
        return task

    async def _ended(self) -> None:
        """Release what the tasks used."""

"""A few threads for work that blocks, and a bound on what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class Crew:
    """Runs functions in threads while its block runs.

    Args:
        threads: How many, >= 1.
        max_waiting: How many functions may wait for one, >= 0.
    """

    def __init__(self, threads: int, max_waiting: int) -> None:
        self._room = threads + max_waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="predictor")

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return self._room <= 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; one that has begun ends, even where nobody waits any more."""
        self._room -= 1
        future = self._pool.submit(work)
        future.add_done_callback(self._leave(asyncio.get_running_loop()))
        return await asyncio.wrap_future(future)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> Callable[[object], None]:
        def leave(_: object) -> None:
            loop.call_soon_threadsafe(self._freed)

        return leave

    def _freed(self) -> None:
        self._room += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

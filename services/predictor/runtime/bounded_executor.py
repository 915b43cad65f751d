"""A thread pool with a bound on waiting work."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

T = TypeVar("T")


class BoundedExecutor:
    """Runs functions in threads while its block runs.

    Args:
        threads: Number of threads, >= 1.
        max_waiting: Functions that may wait for a thread, >= 0.
    """

    def __init__(self, threads: int, max_waiting: int) -> None:
        self._free = threads + max_waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="predictor")

    @property
    def full(self) -> bool:
        """True if no more functions may wait."""
        return self._free <= 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; it runs to its end even if the caller is cancelled."""
        self._free -= 1
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release))
        return await asyncio.wrap_future(future)

    def _release(self) -> None:
        self._free += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

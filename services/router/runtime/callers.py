"""The callers whose requests are open: where each answer is awaited."""

import asyncio
from collections.abc import Callable

from services.router.core.accounting.account import Ended


def call_later(delay_s: float, call: Callable[[str], None], argument: str) -> None:
    """Have the running event loop call a function in `delay_s` seconds."""
    asyncio.get_running_loop().call_later(delay_s, call, argument)


class Callers:
    """Futures of open requests, by number.

    Attributes:
        closing: Set once new requests are refused, for good.
    """

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self._futures: dict[int, asyncio.Future[Ended]] = {}
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._futures)

    def open(self, number: int) -> asyncio.Future[Ended]:
        """Return the future of a new request."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._futures[number] = future
        return future

    def end(self, number: int, ended: Ended) -> bool:
        """Give a caller the end of its request; return whether the caller still waits."""
        future = self._futures.get(number)
        if future is None or future.done():
            return False
        future.set_result(ended)
        return True

    def close(self, number: int) -> None:
        """Forget a caller that was answered or has gone."""
        self._futures.pop(number, None)
        if self.closing.is_set() and not self._futures:
            self._empty.set()

    async def drain(self) -> None:
        """Refuse new requests, and wait until every open one has ended."""
        self.closing.set()
        if self._futures:
            await self._empty.wait()

"""The present: read once for all readers, and again when a plan has changed."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from operator import lt

from services.cli.web_console.cached import Cached
from services.cli.web_console.readers import ServiceReaders
from services.console.documents import Document
from services.kit.broadcast import Broadcast
from services.kit.errors import ServiceError


class Present:
    """The newest document of a deployment's present. Nothing is read while no page is open."""

    def __init__(
        self, readers: ServiceReaders, refresh_s: float, clock: Callable[[], float]
    ) -> None:
        """Read from a deployment.

        Args:
            readers: Readers of the deployment.
            refresh_s: How often it is read while a page is open and no plan changes, s.
            clock: Monotonic time, s.
        """
        self._readers, self._refresh_s = readers, refresh_s
        self._cached = Cached(readers.now, refresh_s, clock)
        self._changes = Broadcast(0)
        self._open = 0
        self._following: asyncio.Task[None] | None = None

    async def get(self) -> Document:
        """Return it, at most `refresh_s` old."""
        return await self._cached.get()

    async def documents(self) -> AsyncGenerator[Document, None]:
        """Yield it now, again and again, and at once when a plan has changed, without end."""
        self._open += 1
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="console.plans")
        try:
            while True:
                seen = self._changes.value
                yield await self.get()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._refresh_s):
                        await self._changes.until(partial(lt, seen))
        finally:
            self._open -= 1
            if not self._open and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _follow(self) -> None:
        """Wake readers at changes of plans, also after a planner was unreachable."""
        while True:
            with suppress(ServiceError):
                async with aclosing(self._readers.changes()) as changes:
                    async for _ in changes:
                        self._cached.forget()
                        self._changes.publish(self._changes.value + 1)
            await asyncio.sleep(self._refresh_s)

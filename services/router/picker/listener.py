"""The picker's address, which a reload may change: the new one serves before the old one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from services.kit.config import Deployment
from services.kit.errors import ServiceError, leaves
from services.kit.owned_tasks import OwnedTasks

Serve = Callable[[Deployment], AbstractAsyncContextManager[None]]
"""Serves at `router.picker_listen` while the block runs."""


class PickerListener(OwnedTasks):
    """Serves at the address of the newest deployment; enter it to begin, leave it to end.

    Args:
        serve: Serves at an address.
    """

    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self._serve = serve
        self._address = ""
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def use(self, deployment: Deployment) -> None:
        """Serve at another address; streams at the old one have their time to end.

        Raises:
            FailedPrecondition: The address cannot be bound; the old one still serves.
        """
        address = deployment.router.picker_listen
        if address == self._address:
            return
        before, end = self._task, self._end
        self._task, self._end = None, asyncio.Event()
        if address:
            bound: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            work = self._serve_until(self._end, deployment, bound)
            self._task = self.start(work, f"router.picker[{address}]")
            try:
                await bound
            except ServiceError:
                self._task, self._end = before, end
                raise
        self._address = address
        end.set()
        if before is not None:
            await before

    async def _serve_until(
        self, end: asyncio.Event, deployment: Deployment, bound: asyncio.Future[None]
    ) -> None:
        try:
            async with self._serve(deployment):
                bound.set_result(None)
                await end.wait()
        except* ServiceError as group:
            if bound.done():
                raise
            bound.set_exception(next(iter(leaves(group))))
        finally:
            bound.cancel()

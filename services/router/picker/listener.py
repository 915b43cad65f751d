"""The picker's address, which a reload may change: the new one serves before the old one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from services.kit.config import Deployment
from services.kit.errors import FailedPrecondition, ServiceError, leaves
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

    async def use(
        self, deployment: Deployment, take: Callable[[Deployment], Awaitable[None]]
    ) -> None:
        """Serve at another address; streams at the old one have their time to end.

        Args:
            deployment: The whole file.
            take: Takes the rest of it over, once the address is bound; an error refuses both.

        Raises:
            FailedPrecondition: The address cannot be bound; the old one still serves.
        """
        address = deployment.router.picker_listen
        if address == self._address:
            await take(deployment)
            return
        before, after = self._end, asyncio.Event()
        task = await self._begun(deployment, after) if address else None
        try:
            await take(deployment)
        except BaseException:
            after.set()
            raise
        old, self._task, self._end, self._address = self._task, task, after, address
        before.set()
        if old is not None:
            await old

    async def _begun(self, deployment: Deployment, end: asyncio.Event) -> asyncio.Task[None]:
        """Return the task that serves at a deployment's address until `end`."""
        bound: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = self._serve_until(end, deployment, bound)
        task = self.start(work, f"router.picker[{deployment.router.picker_listen}]")
        try:
            await bound
        except ServiceError as error:
            raise FailedPrecondition.at("router.picker_listen", error.message) from error
        return task

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

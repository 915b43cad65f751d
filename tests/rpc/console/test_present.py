"""The present is read once for all pages, and again at once when a plan has changed."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from services.cli.web_console.present import Present
from services.cli.web_console.readers import ServiceReaders
from services.console.documents import Document
from services.kit.errors import Unavailable

_LONG_S = 60.0


class Deployment:
    """Readers of a deployment whose plan a test changes. Attributes: version, read, followed."""

    def __init__(self) -> None:
        self.version, self.read, self.followed = 1, 0, 0
        self._changes: asyncio.Queue[int | None] = asyncio.Queue()

    async def now(self) -> Document:
        self.read += 1
        return {"version": self.version}

    async def changes(self) -> AsyncGenerator[int, None]:
        self.followed += 1
        try:
            while (version := await self._changes.get()) is not None:
                yield version
            raise Unavailable("the planner is away")
        finally:
            self.followed -= 1

    def change(self) -> None:
        self.version += 1
        self._changes.put_nowait(self.version)

    def lose(self) -> None:
        self._changes.put_nowait(None)


def present(deployment: Deployment, refresh_s: float = _LONG_S) -> Present:
    return Present(cast(ServiceReaders, deployment), refresh_s, time.monotonic)


async def soon(documents: AsyncIterator[Any]) -> Any:
    return await asyncio.wait_for(anext(documents), 45)


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


async def test_a_changed_plan_reaches_every_page_before_the_next_refresh(
    deployment: Deployment,
) -> None:
    """One reading for both pages; the refresh is a minute away."""
    shown = present(deployment)
    async with aclosing(shown.documents()) as one, aclosing(shown.documents()) as other:
        assert [await soon(one), await soon(other)] == [{"version": 1}] * 2
        deployment.change()

        assert [await soon(one), await soon(other)] == [{"version": 2}] * 2
        assert deployment.read == 2


async def test_plans_are_followed_again_after_the_planner_was_away(deployment: Deployment) -> None:
    async with aclosing(present(deployment, 0.01).documents()) as documents:
        await soon(documents)
        deployment.lose()
        deployment.change()
        while (await soon(documents))["version"] != 2:
            pass
        while not deployment.followed:
            await soon(documents)


async def test_nothing_is_followed_when_the_last_page_has_closed(deployment: Deployment) -> None:
    async with aclosing(present(deployment).documents()) as documents:
        await soon(documents)
        await asyncio.sleep(0)
        assert deployment.followed == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert deployment.followed == 0

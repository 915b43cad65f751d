"""Pages that want the same receipts share one stream of the router."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from services.cli.web_console.feeds import Feeds
from services.console.documents import Document
from services.kit.errors import FailedPrecondition, Unavailable


class Router:
    """Streams that a test feeds. Attributes: opened (all requests so far), open (number now)."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.open = 0
        self.says: asyncio.Queue[Document | None] = asyncio.Queue()

    async def receipts(self, given: Mapping[str, Any]) -> AsyncGenerator[Document, None]:
        self.opened.append(dict(given))
        self.open += 1
        try:
            while (document := await self.says.get()) is not None:
                yield document
            raise Unavailable("the router is away")
        finally:
            self.open -= 1

    def say(self, *receipts: str, left_out: int = 0) -> None:
        self.says.put_nowait({"receipts": list(receipts), "left_out": left_out})


async def soon(documents: AsyncIterator[Document]) -> Document:
    return await asyncio.wait_for(anext(documents), 45)


async def turns() -> None:
    """Run the loop until the stream has been read."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_pages_of_the_same_receipts_share_a_stream_which_ends_with_the_last() -> None:
    router = Router()
    feeds = Feeds(router.receipts)
    async with aclosing(feeds.follow({"model": "m"})) as one:
        async with aclosing(feeds.follow({"model": "m"})) as other:
            waiting = [asyncio.create_task(soon(each), name="page") for each in (one, other)]
            await turns()
            router.say("r1")
            found = await asyncio.gather(*waiting)
        assert router.open == 1
    await turns()

    assert [each["receipts"] for each in found] == [["r1"], ["r1"]]
    assert router.opened == [{"model": "m"}]
    assert router.open == 0


async def test_what_a_slow_page_misses_is_counted() -> None:
    router = Router()
    async with aclosing(Feeds(router.receipts).follow({})) as page:
        router.say("first")
        await soon(page)
        for number in range(10):
            router.say(f"r{number}", left_out=1)
        await turns()
        kept = [await soon(page) for _ in range(8)]

    assert [each["receipts"] for each in kept] == [[f"r{n}"] for n in range(2, 10)]
    assert sum(each["left_out"] + len(each["receipts"]) for each in kept) == 20


async def test_a_router_that_goes_ends_every_page_and_the_next_opens_another_stream() -> None:
    router = Router()
    feeds = Feeds(router.receipts)
    router.says.put_nowait(None)
    with pytest.raises(Unavailable, match="away"):
        await soon(feeds.follow({}))
    router.say("again")

    async with aclosing(feeds.follow({})) as page:
        assert (await soon(page))["receipts"] == ["again"]
    assert len(router.opened) == 2


async def test_choices_beyond_what_a_router_allows_are_refused() -> None:
    router = Router()
    feeds = Feeds(router.receipts)
    pages = [feeds.follow({"variant": str(number)}) for number in range(8)]
    waiting = [asyncio.create_task(anext(page), name="page") for page in pages]
    await turns()
    with pytest.raises(FailedPrecondition, match="8 different choices"):
        await soon(feeds.follow({"variant": "8"}))
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await turns()

    assert router.open == 0

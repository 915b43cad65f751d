"""Receipts for pages: one stream of the router for all pages that want the same ones."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from services.console.documents import Document
from services.kit.errors import FailedPrecondition, ServiceError

_MOST: Final = 8
"""Streams at a time: a router has 32 for all of its watchers."""

_KEPT: Final = 8
"""Documents that wait for a slow page, half a second each."""

_Key = tuple[tuple[str, Any], ...]
_Page = asyncio.Queue[Document | ServiceError]


@dataclass(slots=True, eq=False)
class _Feed:
    pages: set[_Page] = field(default_factory=set)
    reading: asyncio.Task[None] | None = None


class Feeds:
    """Streams of receipts by model and variant; each is read while a page wants it."""

    def __init__(
        self, open_: Callable[[Mapping[str, Any]], AsyncGenerator[Document, None]]
    ) -> None:
        """Share what `open_` yields: documents as of `ServiceReaders.receipts`."""
        self._open = open_
        self._feeds: dict[_Key, _Feed] = {}

    async def follow(self, given: Mapping[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield receipts as they come; what a slow page misses is counted as left out.

        Args:
            given: Which; as for `ServiceReaders.receipts`.

        Raises:
            FailedPrecondition: Too many different streams are followed.
            ServiceError: The router refuses, or does not answer.
        """
        key = tuple(sorted(given.items()))
        feed = self._feeds.get(key)
        if feed is None:
            if len(self._feeds) >= _MOST:
                raise FailedPrecondition(
                    f"receipts: this console follows {_MOST} different choices at a time; choose "
                    "one that others see, or close another page"
                )
            feed = self._feeds[key] = _Feed()
            feed.reading = asyncio.create_task(self._read(key, feed), name="console.receipts")
        page: _Page = asyncio.Queue(_KEPT)
        feed.pages.add(page)
        try:
            while True:
                found = await page.get()
                if isinstance(found, ServiceError):
                    raise found
                yield found
        finally:
            feed.pages.discard(page)
            if not feed.pages and feed.reading is not None:
                feed.reading.cancel()
                self._end(key, feed)

    async def _read(self, key: _Key, feed: _Feed) -> None:
        ended: ServiceError = FailedPrecondition("receipts: the router has ended")
        try:
            async with aclosing(self._open(dict(key))) as documents:
                async for document in documents:
                    for page in feed.pages:
                        _put(page, document)
        except ServiceError as error:
            ended = error
        finally:  # in any case no page waits in vain
            self._end(key, feed)
            for page in feed.pages:
                _put(page, ended)

    def _end(self, key: _Key, feed: _Feed) -> None:
        """Remove a stream: the next page that wants it opens a new one."""
        if self._feeds.get(key) is feed:
            del self._feeds[key]


def _put(page: _Page, found: Document | ServiceError) -> None:
    """Hand a document to a page; a full one gives up its oldest."""
    if page.full():
        missed = page.get_nowait()
        if isinstance(found, dict) and isinstance(missed, dict):
            left_out = found["left_out"] + missed["left_out"] + len(missed["receipts"])
            found = found | {"left_out": left_out}
    page.put_nowait(found)

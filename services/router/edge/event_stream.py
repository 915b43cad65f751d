"""Answers in parts as server-sent events, which proxies pass on and do not cut.

Source: WHATWG, "HTML", section 9.2 (server-sent events; section 9.2.7 advises comments against
proxies that end silent connections); nginx, "ngx_http_proxy_module" (`X-Accel-Buffering`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from aiohttp import web

from services.kit.errors import ResourceExhausted, ServiceError
from services.kit.http.slow_clients import write
from services.router.core.accounting.receipts import Answer
from services.router.core.model import Instance, ResponseReceiver

HEADERS_AFTER_S: Final = 0.5
"""Silence after which the headers leave, s: an error until then has a status."""
PING_AFTER_S = 10.0
"""Silence after which a comment is sent, s: proxies end silent answers, nginx after 60 s."""

_PING: Final = b": ping\n\n"
_HEADERS: Final = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
_MAX_UNREAD: Final = 16 * 2**20
"""Size of the parts of an answer that may wait for its client, bytes."""

Infer = Callable[[ResponseReceiver], Awaitable[Answer]]
"""Has the request answered; the receiver takes the parts before the last."""


class Events(Protocol):
    """Writes an answer as events, in an API's own form."""

    def part(self, response: bytes) -> bytes:
        """Return the event of a part: a serialized ModelInferResponse."""
        ...

    def end(self, answer: Answer) -> Iterator[bytes]:
        """Yield the events of the last part, and of the end."""
        ...

    def failure(self, error: ServiceError) -> bytes:
        """Return the event of an error after the headers."""
        ...


async def stream(
    request: web.Request,
    infer: Infer,
    events: Events,
    whole: Callable[[Answer], Awaitable[web.Response | None]] | None = None,
) -> web.StreamResponse:
    """Answer a request in parts as they come.

    Args:
        request: The request.
        infer: Has it answered.
        events: Writes the parts.
        whole: Returns an answer that has no parts; None: it has, or none may be without.

    Raises:
        ServiceError: The request failed before the headers left.
    """
    parts = _Parts()
    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(_answer(infer, parts), name="router.http.generate")
        first = await parts.next(HEADERS_AFTER_S)
        if isinstance(first, Answer) and whole and (complete := await whole(first)) is not None:
            return complete
        if not isinstance(first, ServiceError):
            response = web.StreamResponse(headers=_HEADERS)
            response.content_type = "text/event-stream"
            try:
                await response.prepare(request)
                await _send(response, first, parts, events)
            except ConnectionError:
                answering.cancel()
            return response
    raise first


async def _answer(infer: Infer, parts: "_Parts") -> None:
    try:
        parts.end(await infer(parts))
    except ServiceError as error:
        parts.end(error)


async def _send(
    response: web.StreamResponse, first: "_Part | None", parts: "_Parts", events: Events
) -> None:
    part = first
    while part is None or isinstance(part, bytes):
        await write(response, _PING if part is None else events.part(part))
        part = await parts.next(PING_AFTER_S)
    ending = [events.failure(part)] if isinstance(part, ServiceError) else events.end(part)
    for event in ending:
        await write(response, event)


_Part = bytes | Answer | ServiceError


class _Parts:
    """The `ResponseReceiver` of a stream: parts of an answer on their way to the client."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[_Part] = asyncio.Queue()
        self._waiting_bytes = 0

    def receive_part(self, instance: Instance | None, response: bytes) -> None:  # noqa: ARG002 - protocol
        if self._waiting_bytes > _MAX_UNREAD:
            raise ResourceExhausted(
                f"{self._waiting_bytes} bytes of the answer wait for the client to read them, and"
                f" {_MAX_UNREAD} may",
                reason="SLOW_CLIENT",
            )
        self._waiting_bytes += len(response)
        self._queue.put_nowait(response)

    def complete(self, response: bytes) -> bytes:
        return response

    def end(self, ended: Answer | ServiceError) -> None:
        """Put the end behind the parts."""
        self._queue.put_nowait(ended)

    async def next(self, silence_s: float) -> _Part | None:
        """Wait for the next part, or the end; None: neither came in time."""
        try:
            async with asyncio.timeout(silence_s):
                part = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(part, bytes):
            self._waiting_bytes -= len(part)
        return part

"""Bounds on how long a client takes to send a body and to read an answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from services.kit.errors import DeadlineExceeded

_STALLED_S: Final = 30.0
"""Time in which a client must read an answer, s."""
_SILENT_S: Final = 10.0
"""Longest time between two pieces of a body, s."""
_SMALL: Final = 64 * 2**10
"""Answers up to this size leave without waiting for the client."""


async def pieces(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yield the body of a request, decompressed, as it comes.

    Raises:
        DeadlineExceeded: The client has stopped sending.
    """
    while not request.content.at_eof():
        try:
            async with asyncio.timeout(_SILENT_S):
                piece = await request.content.readany()
        except TimeoutError:
            raise DeadlineExceeded(
                f"nothing came of the request's body for {_SILENT_S:g} s", reason="SLOW_CLIENT"
            ) from None
        yield piece


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Send a piece of an answer; return when the client may take more.

    Raises:
        ConnectionError: The client has gone, or does not read.
    """
    try:
        async with asyncio.timeout(_STALLED_S):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("the client does not read") from None


async def sent(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """Send a large answer, or break the connection of a client that does not read it."""
    if isinstance(response, web.Response) and (response.content_length or 0) > _SMALL:
        try:
            async with asyncio.timeout(_STALLED_S):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            raise ConnectionResetError("the client does not read") from None
    return response

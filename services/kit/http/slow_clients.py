"""Bounds on how long a client takes to send a body and to read an answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from services.kit.errors import DeadlineExceeded, InvalidArgument
from services.kit.http.encodings import Decompressor

_STALLED_S: Final = 30.0
"""Time in which a client must read an answer, s."""
_SILENT_S: Final = 10.0
"""Longest time between two pieces of a body, s."""
_BODY_S: Final = 20.0
"""Time for a body beside that which its bytes may take, s."""
_SLOWEST_BPS: Final = 16 * 2**10
"""Bytes of a body that must come per second."""
_TURN_BYTES: Final = 2**20
"""Bytes that are decompressed before others have their turn on the loop."""
_SMALL: Final = 64 * 2**10
"""Answers up to this size leave without waiting for the client."""


async def pieces(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yield the body of a request, decompressed, as it comes.

    Raises:
        DeadlineExceeded: The client has stopped sending, or sends too slowly.
        InvalidArgument: The body is damaged.
    """
    reader = Decompressor(request.headers.get("Content-Encoding", ""))
    unyielding = 0
    async for data in _received(request):
        for piece in reader.feed(data):
            unyielding += len(piece)
            if unyielding > _TURN_BYTES:
                await asyncio.sleep(0)
                unyielding = 0
            yield piece
    reader.end()


async def _received(request: web.BaseRequest) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _BODY_S
    while not request.content.at_eof():
        try:
            async with asyncio.timeout(min(_SILENT_S, end_s - loop.time())):
                piece = await request.content.readany()
        except TimeoutError:
            raise DeadlineExceeded(
                f"nothing came of the request's body for {_SILENT_S:g} s, or fewer than"
                f" {_SLOWEST_BPS} bytes per second after {_BODY_S:g} s",
                reason="SLOW_CLIENT",
            ) from None
        except web.RequestPayloadError as error:
            raise InvalidArgument.at("body", f"damaged: {error}") from None
        end_s += len(piece) / _SLOWEST_BPS
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

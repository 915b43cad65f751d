"""A server's metrics page over HTTP, no more of it than is read."""

from typing import Final

import aiohttp

from services.kit.server_metrics.exposition import MAX_PAGE_BYTES

_CHUNK_BYTES: Final = 65_536


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    limits: aiohttp.ClientTimeout,
    most_bytes: int = MAX_PAGE_BYTES,
) -> bytes:
    """Return a page, no more of it than so many bytes.

    Args:
        session: Connections.
        url: Of the page.
        limits: Times that it may take.
        most_bytes: Its longest part that is wanted.

    Raises:
        OSError, aiohttp.ClientError, TimeoutError: It cannot be had.
    """
    async with session.get(
        url,
        timeout=limits,
        allow_redirects=False,
        headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
    ) as response:
        if response.status != 200:
            raise aiohttp.ClientError(f"HTTP {response.status}")
        page = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            page += chunk
            if len(page) >= most_bytes:
                break
        return bytes(page[:most_bytes])

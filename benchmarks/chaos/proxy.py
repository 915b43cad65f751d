"""A TCP proxy that can become a black hole: connections stay open, and nothing passes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from services.kit.net import split_address

_CHUNK_BYTES = 65_536


class Proxy:
    """Passes bytes on between its port and a service. Attributes: passing (cleared: nothing is)."""

    def __init__(self, to: str) -> None:
        self._to = split_address(to)
        self.passing = asyncio.Event()
        self.passing.set()
        self._pipes: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def between(cls, listen: str, to: str) -> AsyncIterator["Proxy"]:
        """Listen while the block runs."""
        proxy = cls(to)
        host, port = split_address(listen)
        server = await asyncio.start_server(proxy._accept, host, port)
        try:
            yield proxy
        finally:
            server.close()
            for pipe in proxy._pipes:
                pipe.cancel()
            await asyncio.gather(*proxy._pipes, return_exceptions=True)

    @asynccontextmanager
    async def black_hole(self) -> AsyncIterator[None]:
        """Pass nothing on while the block runs; what waits passes afterwards."""
        self.passing.clear()
        try:
            yield
        finally:
            self.passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.passing.wait()
        try:
            theirs = await asyncio.open_connection(*self._to)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, theirs[1]), (theirs[0], writer)):
            pipe = asyncio.create_task(self._pass(source, sink), name="chaos.proxy")
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await self.passing.wait()
                sink.write(data)
                await sink.drain()
        with suppress(OSError):
            sink.close()

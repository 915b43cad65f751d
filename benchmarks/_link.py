"""A TCP link that delays, and can stop without a word, as a lost node or a pulled cable does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_MOST_ON_THE_WAY: Final = 256
"""Pieces of a connection that are on the way at a time, in one direction."""


class Link:
    """A proxy in front of a server. Attributes: address (where it listens), connections."""

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        self.address = ""
        self.connections = 0
        self._target, self._delay_s = target.rpartition(":"), delay_s
        self._flowing = asyncio.Event()
        self._flowing.set()

    def freeze(self) -> None:
        """Forward nothing from now on, keep every connection open, accept new ones."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, what was held first."""
        self._flowing.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection, both ways, until an end closes it."""
        self.connections += 1
        host, _, port = self._target
        try:
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
        except ConnectionError:  # the server is away: so is this connection
            self.connections -= 1
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, server_writer))
                tasks.create_task(self._pump(server_reader, writer))
        finally:
            self.connections -= 1

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces = asyncio.Queue[tuple[float, bytes]](_MOST_ON_THE_WAY)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(reader, pieces))
            tasks.create_task(self._deliver(pieces, writer))

    async def _take(
        self, reader: asyncio.StreamReader, pieces: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        now_s, data = asyncio.get_running_loop().time, b"-"
        while data:
            try:
                data = await reader.read(65536)
            except ConnectionError:
                data = b""  # the other end has gone, which is what it was waiting for
            await pieces.put((now_s() + self._delay_s, data))

    async def _deliver(
        self, pieces: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
        now_s = asyncio.get_running_loop().time
        try:
            while True:
                due_s, data = await pieces.get()
                if (early_s := due_s - now_s()) > 0:
                    await asyncio.sleep(early_s)
                await self._flowing.wait()  # an end, too, is not forwarded while frozen
                if not data:
                    return
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            while (await pieces.get())[1]:  # takes what still comes, until its end
                pass
        finally:
            writer.close()


@asynccontextmanager
async def linked(
    target: str, delay_s: float = 0.0, listen: str = "127.0.0.1:0"
) -> AsyncIterator[Link]:
    """Forward to "host:port" `target` while the block runs.

    Args:
        target: The server.
        delay_s: Time that each direction takes, s.
        listen: Where clients find it.
    """
    link = Link(target, delay_s)
    joins: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(link.join(reader, writer), name="link")
        joins.add(task)
        task.add_done_callback(joins.discard)

    host, _, port = listen.rpartition(":")
    server = await asyncio.start_server(accept, host, int(port))
    link.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        for task in tuple(joins):
            task.cancel()
        if joins:
            await asyncio.wait(joins)

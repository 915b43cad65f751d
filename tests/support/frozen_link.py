"""A TCP link that can stop forwarding without a word, as a lost node or a pulled cable does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Link:
    """A proxy in front of a server. Attributes: address (where it listens), connections."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self.connections = 0
        self._target = target.rpartition(":")
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
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, server_writer))
                tasks.create_task(self._pump(server_reader, writer))
        finally:
            self.connections -= 1

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            await self._flowing.wait()  # an end, too, is not forwarded
        except ConnectionError:
            pass  # the other end has gone, which is what it was waiting for
        finally:
            writer.close()


@asynccontextmanager
async def linked(target: str) -> AsyncIterator[Link]:
    """Forward to "host:port" `target` while the block runs."""
    link = Link(target)
    joins: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(link.join(reader, writer), name="link")
        joins.add(task)
        task.add_done_callback(joins.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    link.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        for task in tuple(joins):
            task.cancel()
        if joins:
            await asyncio.wait(joins)

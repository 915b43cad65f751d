"""A client that writes any frames it likes, well-formed or not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import grpc

from services.kit.h2 import Server, frames
from services.kit.h2.admission import Admit
from services.kit.h2.frames import HEAD, PREFACE, UINT32, frame
from services.kit.h2.hpack import literal
from services.kit.h2.messages import PREFIX
from services.kit.rpc import Limits, serving

PATH = "/test.Service/Echo"
STREAM_PATH = "/test.Service/Talk"
REFUSED_PATH = "/test.Service/Refuse"
_LIMIT_S = 20.0


@dataclass(frozen=True)
class Frame:
    """One that came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


@dataclass
class Wire:
    """A connection to the server under test.

    Attributes:
        came: Frames so far.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    came: list[Frame] = field(default_factory=list)

    def write(self, *data: bytes) -> None:
        """Send these bytes."""
        self.writer.write(b"".join(data))

    async def next(self) -> Frame | None:
        """Return the next frame; None: the server has closed."""
        try:
            async with asyncio.timeout(_LIMIT_S):
                word, flags, stream = HEAD.unpack(await self.reader.readexactly(HEAD.size))
                found = Frame(word & 0xFF, flags, stream, await self.reader.readexactly(word >> 8))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.came.append(found)
        return found

    async def until(self, kind: int, stream: int | None = None) -> Frame:
        """Return the next frame of a kind."""
        while (found := await self.next()) is not None:
            if found.kind == kind and stream in (None, found.stream):
                return found
        raise AssertionError(f"closed without frame {kind}; last came {self.came[-3:]}")

    async def fault(self) -> int:
        """Return the code that the server ended the connection with."""
        while (found := await self.next()) is not None:
            if found.kind == frames.GOAWAY and UINT32.unpack_from(found.payload, 4)[0]:
                return int(UINT32.unpack_from(found.payload, 4)[0])
        raise AssertionError(f"closed without GOAWAY; last came {self.came[-3:]}")


def head(stream: int, path: str = PATH, *more: tuple[str, bytes], flags: int = 4) -> bytes:
    """Return the HEADERS of a call."""
    return frame(frames.HEADERS, flags, stream, block(path, *more))


def block(path: str = PATH, *more: tuple[str, bytes]) -> bytes:
    """Return the header block of a call: POST, http, and literals."""
    fields = (
        (":path", path.encode()),
        (":authority", b"test"),
        ("content-type", b"application/grpc"),
        *more,
    )
    return b"\x83\x86" + b"".join(literal(name, value) for name, value in fields)


def data(stream: int, message: bytes, *, ends: bool = True) -> bytes:
    """Return the DATA of one message."""
    return frame(frames.DATA, int(ends), stream, PREFIX.pack(0, len(message)) + message)


class Echo:
    """Handlers that return what they are sent.

    Attributes:
        held: While set, unary calls wait.
        running: Calls that run.
    """

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.running = 0

    async def echo(self, request: bytes, _: object) -> bytes:
        self.running += 1
        try:
            await self.free.wait()
            return bytes(request)
        finally:
            self.running -= 1

    async def talk(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        async for request in requests:
            await self.free.wait()
            await context.write(bytes(request))

    async def refuse(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")

    def register(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
            "Refuse": grpc.stream_stream_rpc_method_handler(self.refuse),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Service", handlers),)
        )


@asynccontextmanager
async def echoing(limits: Limits | None = None) -> AsyncIterator[tuple[Echo, int]]:
    """Serve `Echo` over our own transport; yield it and its port."""
    echo = Echo()
    async with serving(
        "127.0.0.1:0",
        echo.register,
        (),
        limits=limits or Limits(),
        transport="own",
        grace_s=0.5,
    ) as server:
        yield echo, server.port


@asynccontextmanager
async def admitting(limits: Limits, admit: Admit) -> AsyncIterator[tuple[Echo, int]]:
    """Serve `Echo` to those whom `admit` lets in; yield it and its port."""
    echo, server = Echo(), Server(lambda _, handler: handler, limits, admit=admit)
    echo.register(cast(grpc.aio.Server, server))
    port = server.listen("127.0.0.1:0")
    await server.start()
    try:
        yield echo, port
    finally:
        echo.free.set()
        await server.stop(0.5)


@asynccontextmanager
async def wired(port: int, *, greeting: bytes | None = None) -> AsyncIterator[Wire]:
    """Connect, and send the preface and empty settings, or another greeting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = Wire(reader, writer)
    wire.write(PREFACE + frame(frames.SETTINGS, 0, 0) if greeting is None else greeting)
    try:
        yield wire
    finally:
        writer.close()


async def still_served(port: int) -> None:
    """Check that another client's call is answered."""
    async with wired(port) as wire:
        wire.write(head(1), data(1, b"hello"))
        answer = await wire.until(frames.DATA)
        assert answer.payload[5:] == b"hello"

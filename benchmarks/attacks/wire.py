"""A client that writes any HTTP/2 frames it likes, over TLS, and counts what comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import hpack

from benchmarks.attacks.target import Target
from services.kit.config import Tls
from services.kit.h2.frames import (
    ACK,
    DATA,
    GOAWAY,
    HEAD,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTING,
    SETTINGS,
    UINT32,
    WINDOW,
    frame,
)
from services.kit.h2.hpack import literals
from services.kit.h2.messages import PREFIX
from services.kit.net import split_address

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
READY: Final = "/inference.GRPCInferenceService/ServerReady"
METADATA: Final = "/inference.GRPCInferenceService/ModelMetadata"
WATCH: Final = "/grpc.health.v1.Health/Watch"
CHECK: Final = "/grpc.health.v1.Health/Check"
REPORT_LOAD: Final = "/cinquefoil.planner.v1.PlannerService/ReportLoad"
_WROTE_BYTES: Final = 2**18
_CONNECT_S: Final = 10.0

Field = tuple[str, bytes]


def head(stream: int, path: str, *more: Field, flags: int = 4) -> bytes:
    """Return the HEADERS of a call."""
    return frame(HEADERS, flags, stream, block(path, *more))


def block(path: str, *more: Field) -> bytes:
    """Return the header block of a call."""
    fields = (
        (":path", path.encode()),
        (":authority", b"127.0.0.1"),
        ("content-type", b"application/grpc"),
        ("te", b"trailers"),
        *more,
    )
    return b"\x83\x87" + literals(fields)


def data(stream: int, message: bytes, *, ends: bool = True) -> bytes:
    """Return the DATA of one message."""
    return frame(DATA, int(ends), stream, PREFIX.pack(0, len(message)) + message)


class Wire:
    """One connection.

    Attributes:
        statuses: gRPC status by stream; "reset": it was reset.
        answered: Streams that had DATA.
        closed: Set when the server has closed, or said GOAWAY with an error.
        fault: Code of its GOAWAY; 0: none.
        answers_pings: Whether PING and SETTINGS are acknowledged.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = hpack.Decoder()
        self.statuses: dict[int, str] = {}
        self.answered: set[int] = set()
        self.closed = asyncio.Event()
        self.fault = 0
        self.answers_pings = True
        self._changed = asyncio.Event()
        self._block = bytearray()

    def write(self, *frames: bytes) -> None:
        """Send frames; of a closed connection nothing."""
        with suppress(ConnectionError, RuntimeError):
            self._writer.write(b"".join(frames))

    async def pour(self, frames: AsyncIterator[bytes] | list[bytes]) -> None:
        """Send many frames, as fast as they are taken."""
        waiting = bytearray()

        async def flush() -> None:
            self.write(bytes(waiting))
            waiting.clear()
            with suppress(ConnectionError):
                await self._writer.drain()

        if isinstance(frames, list):
            for each in frames:
                waiting += each
                if len(waiting) > _WROTE_BYTES:
                    await flush()
                    if self.closed.is_set():
                        return
        else:
            async for each in frames:
                waiting += each
                await flush()
        await flush()

    async def read(self) -> None:
        """Take what comes until the server closes."""
        try:
            while True:
                word, flags, stream = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                self._take(word & 0xFF, flags, stream, await self._reader.readexactly(word >> 8))
                self._changed.set()
        except (asyncio.IncompleteReadError, OSError, hpack.HPACKError):
            self.closed.set()
            self._changed.set()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
            if (status := fields.get("grpc-status")) is not None:
                self.statuses[stream] = status
            elif (http := fields.get(":status", "200")) != "200":
                self.statuses[stream] = f"http {http}"
        elif kind == RESET:
            self.statuses.setdefault(stream, "reset")
        elif kind == GOAWAY:
            self.fault = UINT32.unpack_from(payload, 4)[0]
            if self.fault:
                self.closed.set()
        elif kind == DATA and payload:
            self.answered.add(stream)
            self.write(frame(WINDOW, 0, 0, UINT32.pack(len(payload))))
        elif kind in (PING, SETTINGS) and not flags & ACK and self.answers_pings:
            self.write(frame(kind, ACK, 0, payload if kind == PING else b""))

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds of what came; return whether it did."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        return holds()

    def found(self) -> str:
        """Return what became of the calls, in words."""
        counts = Counter(self.statuses.values())
        return ", ".join(f"{_NAMES.get(name, name)} {number}" for name, number in counts.items())


_NAMES: Final = {
    "0": "OK", "1": "CANCELLED", "3": "INVALID_ARGUMENT", "4": "DEADLINE_EXCEEDED",
    "7": "PERMISSION_DENIED", "8": "RESOURCE_EXHAUSTED", "12": "UNIMPLEMENTED", "13": "INTERNAL",
    "14": "UNAVAILABLE", "16": "UNAUTHENTICATED",
}  # fmt: skip


@asynccontextmanager
async def wired(
    target: Target,
    address: str,
    tls: Tls,
    *,
    window: int | None = None,
) -> AsyncIterator[Wire]:
    """Connect to a server of a target, and greet it.

    Args:
        target: The suite.
        address: Of the server.
        tls: Certificate to show.
        window: First window of every stream, bytes; None: the default.
    """
    host, port = split_address(address)
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(host, port, ssl=target.context(tls))
    wire = Wire(reader, writer)
    settings = b"" if window is None else SETTING.pack(4, window)
    wire.write(PREFACE + frame(SETTINGS, 0, 0, settings))
    reading = asyncio.create_task(wire.read(), name="attacks.wire")
    try:
        yield wire
    finally:
        reading.cancel()
        writer.transport.abort()

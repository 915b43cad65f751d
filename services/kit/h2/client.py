"""A client's connection with one stream on it: both sides send messages while it lasts."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

from services.kit.h2 import frames
from services.kit.h2.connection import Connection
from services.kit.h2.frames import END_HEADERS, HEADERS, PREFACE, frame
from services.kit.h2.hpack import literal
from services.kit.h2.messages import MessageError, MessageReader
from services.kit.h2.sending import Stream
from services.kit.net import split_address

_STREAM: Final = 1
_POST_HTTP, _POST_HTTPS = b"\x83\x86", b"\x83\x87"

Fields = dict[bytes, bytes]


class ClientStream(Connection[Fields, Stream]):
    """A bidirectional call over a connection of its own.

    Attributes:
        closed: Done when the connection is gone.
        reason: Why it is gone, in words.
    """

    def __init__(  # noqa: PLR0913 - what a call is made of
        self,
        path: str,
        authority: str,
        on_message: "OnMessage",
        on_room: Callable[[], None],
        *,
        message_bytes: int,
        dead_after_s: float,
        secure: bool,
    ) -> None:
        super().__init__(dead_after_s, expects_preface=False)
        self._path = path
        self._authority = authority
        self._on_message = on_message
        self._on_room = on_room
        self._message_bytes = message_bytes
        self._secure = secure
        self._stream: Stream | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.reason = "the connection was closed"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the stream."""
        super().connection_made(transport)
        block = _POST_HTTPS if self._secure else _POST_HTTP
        for name, value in (
            (":authority", self._authority),
            (":path", self._path),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "cinquefoil"),
        ):
            block += literal(name, value.encode())
        self.transport.write(
            PREFACE
            + self.open_windows({frames.ENABLE_PUSH: 0})
            + frame(HEADERS, END_HEADERS, _STREAM, block)
        )
        self.last_stream = _STREAM
        self._stream = self.streams[_STREAM] = Stream(_STREAM, self.peer_stream_window)

    @property
    def ready(self) -> bool:
        """True if a message would leave at once."""
        stream = self._stream
        return (
            stream is not None
            and not (stream.over or stream.outbox or self.write_paused)
            and stream.send_window > 0
            and self.send_window > 0
        )

    def send(self, pieces: Sequence[bytes], size: int) -> None:
        """Send a message of `size` bytes in pieces; only while `ready`, else it waits for room."""
        if self._stream is not None:
            self.send_message(self._stream, pieces, size)

    def abort(self, reason: str) -> None:
        """End the connection at once, if it has not ended; the first reason stays."""
        if not self.transport.is_closing():
            self.reason = reason
            self.transport.abort()

    # ---- what comes

    def read_head(self, fields: list[tuple[bytes, bytes]], cut: bool) -> Fields:
        """Return headers or trailers."""
        return dict(fields)

    def head_received(self, number: int, head: Fields, ended: int) -> None:
        """Take headers, or the end."""
        status = head.get(b":status", b"200")
        if status != b"200":
            self.abort(f"HTTP status {status.decode('latin-1')}")
        elif ended:
            code = head.get(b"grpc-status", b"?").decode("latin-1")
            message = unquote(head.get(b"grpc-message", b"").decode("latin-1"))
            self.abort(f"status {code}: {message}")

    def reader_of(self, stream: Stream) -> MessageReader:
        """Return what cuts the answers."""
        return MessageReader(partial(self._on_message, self), self._message_bytes)

    def data_ended(self, stream: Stream, *, ended: bool) -> None:
        """End with the stream."""
        if ended:
            self.abort("the stream ended without a status")

    def message_refused(self, stream: Stream, error: MessageError) -> None:
        """End with a message that cannot be read."""
        self.abort(str(error))

    def stream_reset(self, stream: Stream, code: int, *, by_peer: bool = True) -> None:
        """End with the stream."""
        self.abort(f"the stream was reset with code {code}")

    def gone_away(self, last_stream: int, code: int) -> None:
        """Go on until the stream ends, unless it was never taken."""
        if last_stream < _STREAM:
            self.abort(f"the server is leaving, code {code}")

    def lost(self) -> None:
        """Wake the owner of the stream."""
        if self._stream is not None:
            self.finish(self._stream)
        if not self.closed.done():
            self.closed.set_result(None)

    def writable(self) -> None:
        """Report that there is room."""
        if self.ready:
            self._on_room()


OnMessage = Callable[[ClientStream, bytes | bytearray], None]


async def open_stream(  # noqa: PLR0913 - what a call is made of
    address: str,
    path: str,
    on_message: OnMessage,
    on_room: Callable[[], None],
    *,
    context: ssl.SSLContext | None = None,
    server_name: str | None = None,
    message_bytes: int,
    dead_after_s: float,
) -> ClientStream:
    """Connect, and open a bidirectional call.

    Args:
        address: "host:port".
        path: "/package.Service/Method".
        on_message: Called with each message that comes; the first may come before this returns.
        on_room: Called when there may be room to send again.
        context: TLS with ALPN "h2"; None: plaintext.
        server_name: Name in the server's certificate; None: the address's host.
        message_bytes: Maximum size of a message that comes.
        dead_after_s: Time after which a silent server is given up, s.

    Raises:
        OSError: There is no connection (also ssl.SSLError, TimeoutError).
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(dead_after_s):
        _, stream = await loop.create_connection(
            lambda: ClientStream(
                path,
                address,
                on_message,
                on_room,
                message_bytes=message_bytes,
                dead_after_s=dead_after_s,
                secure=context is not None,
            ),
            host,
            port,
            ssl=context,
            server_hostname=(server_name or host) if context is not None else None,
        )
    return stream

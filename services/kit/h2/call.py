"""One call of a client: its messages, and what grpc.aio calls its context."""

import asyncio
import base64
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

import grpc

from services.kit.h2.admission import EVERYBODY, Room
from services.kit.h2.messages import PREFIX_BYTES, Compressed
from services.kit.h2.sending import Stream

Handler = Any
"""A grpc.RpcMethodHandler, which is not generic at run time."""

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Contents of a call's headers.

    Attributes:
        path: "/package.Service/Method".
        metadata: What the caller added, without what HTTP/2 and gRPC need themselves.
        timeout_s: Time that the caller waits; None: for ever.
        handler: Of the method; None: there is no such method.
        encoding: Of compressed messages.
        accepted: Encodings that the caller reads.
        refusal: Why this is not a call of gRPC: HTTP status and sentence.
        error: Why no handler could answer: gRPC's status and sentence.
        size: 1, and one for each KiB of metadata.
        length: Of its DATA, where `content-length` has it.
        fault: Why the request is malformed (RFC 9113, 8.1 to 8.3); "" if it is not.
    """

    path: str
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    timeout_s: float | None = None
    handler: Handler = None
    encoding: str = "identity"
    accepted: tuple[str, ...] = ()
    refusal: tuple[int, str] | None = None
    error: tuple[int, str] | None = None
    length: int | None = None
    size: int = 1
    fault: str = ""


class CallConnection(Protocol):
    """The connection of a call.

    Attributes:
        peer_name: The caller's address as gRPC writes it.
        identity: The names in its verified certificate.
        peer_stream_window: The window that the peer gives to a new stream.
    """

    peer_name: str
    identity: Mapping[str, Sequence[bytes]]
    peer_stream_window: int

    def send(self, call: "Call", message: bytes) -> None:
        """Send one message, as far as the caller's windows let it."""
        ...

    def consume(self, stream: "Call", count: int) -> None:
        """Give bytes back to the caller's windows."""
        ...

    def release(self, call: "Call", count: int) -> None:
        """Give back room that a message in pieces has taken."""
        ...

    async def decompressed(self, call: "Call", message: Compressed) -> bytearray:
        """Return a message decompressed, which takes room, or refuse its call."""
        ...

    def was_read(self, call: "Call") -> None:
        """Give back room that answers have taken."""
        ...


class Call(Stream):
    """A call, with the methods of grpc.aio.ServicerContext that servicers use."""

    __slots__ = (
        "_code",
        "_connection",
        "_deadline_s",
        "_details",
        "_trailers",
        "begun_s",
        "caller",
        "counted",
        "due_s",
        "head",
        "held",
        "inbox",
        "message",
        "opened",
        "opening",
        "payer",
        "refusal",
        "reserved",
        "room",
        "stuck",
        "task",
        "timer",
        "unread",
        "waiter",
    )

    def __init__(self, number: int, head: RequestHead, connection: CallConnection) -> None:
        super().__init__(number, connection.peer_stream_window)
        self._connection = connection
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailers: Metadata = ()
        timeout_s = head.timeout_s
        self.begun_s = time.monotonic()
        self._deadline_s = None if timeout_s is None else self.begun_s + timeout_s
        self.head = head
        self.message: bytes | bytearray | Compressed | None = None
        self.inbox: deque[bytes | bytearray | Compressed] | None = None  # of a stream of requests
        self.held = 0  # bytes of the inbox that the peer's window does not have back
        self.reserved = 0  # bytes of messages in pieces, which the server bounds together
        self.payer = EVERYBODY
        self.caller: Any = None  # what `Admit` found out, for the handler
        self.refusal: tuple[int, str, Metadata] | None = None  # once its first request comes
        self.opening = False  # its message is not there yet
        self.counted = False  # among the calls that run
        self.due_s = math.inf  # when its first message must be there, by the loop's clock
        self.unread = 0  # bytes of answers in the outbox, which the server bounds together
        self.room: Room | None = None  # that they take
        self.stuck = (0, 0.0)  # bytes in the outbox, and since when so many
        self.waiter: asyncio.Future[None] | None = None
        self.opened = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    # ---- grpc.aio.ServicerContext

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return what the caller sent along."""
        return self.head.metadata

    def time_remaining(self) -> float | None:
        """Return how long the caller still waits, s; None: for ever."""
        return None if self._deadline_s is None else max(self._deadline_s - time.monotonic(), 0.0)

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """Send these after the answer."""
        self._trailers = trailing_metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """Answer with this status."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Answer with this message."""
        self._details = details

    def code(self) -> grpc.StatusCode | None:
        """Return the status so far."""
        return self._code

    def cancelled(self) -> bool:
        """Return whether the caller is gone."""
        return self.over

    def peer(self) -> str:
        """Return the caller's address as gRPC writes it: "ipv4:host:port"."""
        return self._connection.peer_name

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return the names in the caller's verified certificate."""
        return self._connection.identity

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with a status."""
        self._code, self._details, self._trailers = code, details, trailing_metadata
        raise grpc.aio.AbortError(details)

    async def write(self, message: Any) -> None:
        """Send one message of an answer; waits while the caller has no room."""
        if self.over:
            raise grpc.aio.UsageError("the call has ended")
        serialize = self.head.handler.response_serializer
        self._connection.send(self, message if serialize is None else serialize(message))
        while self.outbox and not self.over:
            self.sent_all = asyncio.get_running_loop().create_future()
            await self.sent_all
        if self.unread:
            self._connection.was_read(self)

    # ---- a stream of requests

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        inbox = self.inbox
        while not inbox:
            if self.ended or inbox is None:
                raise StopAsyncIteration
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        message = inbox.popleft()
        given_back = min(len(message) + PREFIX_BYTES, self.held) if inbox else self.held
        self.held -= given_back
        self._connection.consume(self, given_back)
        if isinstance(message, Compressed):
            came, message = len(message), await self._connection.decompressed(self, message)
            self._connection.release(self, min(came + len(message), self.reserved))
        elif isinstance(message, bytearray):  # it came in pieces
            self._connection.release(self, min(len(message), self.reserved))
        return self.read(message)

    def read(self, message: bytes | bytearray) -> Any:
        """Return a request as its handler takes it."""
        deserialize = self.head.handler.request_deserializer
        if deserialize is None:
            return message
        return deserialize(message)  # protobuf reads a bytearray, too: a gigabyte is not copied

    def status(self) -> tuple[int, str, Metadata]:
        """Return number, message and trailers of the status so far."""
        code = 0 if self._code is None else self._code.value[0]
        return code, self._details, self._trailers


def decoded(key: bytes, value: bytes) -> tuple[str, str | bytes]:
    """Return a field of metadata; the values of names that end in "-bin" are bytes.

    Raises:
        ValueError: The field is not metadata of gRPC.
    """
    name = key.decode("ascii")
    if name != name.lower():
        raise ValueError(f"a header with capitals: {name}")
    if name.endswith("-bin"):
        return name, base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    return name, value.decode("ascii")


def encoded(value: str | bytes, *, binary: bool) -> bytes:
    """Return a field of metadata as it is sent."""
    data = value.encode() if isinstance(value, str) else value
    return base64.b64encode(data).rstrip(b"=") if binary else data

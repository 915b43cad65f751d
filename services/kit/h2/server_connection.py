"""A client's connection: calls in, answers out.

Source: PROTOCOL-HTTP2.md, "Requests" and "Responses".
"""

import asyncio
import inspect
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Any, Final
from urllib.parse import quote

import grpc

from services.kit import peer
from services.kit.h2 import frames
from services.kit.h2.admission import EVERYBODY, Admit, Refused, Room, local_or_host
from services.kit.h2.call import Call, Handler, Metadata, RequestHead, decoded, encoded
from services.kit.h2.connection import HEADER_LIST_BYTES, NUDGES_PER_CALL, Connection
from services.kit.h2.frames import END_HEADERS, END_STREAM, HEAD, HEADERS, ConnectionFault
from services.kit.h2.header_rules import NO_PSEUDO_FIELDS, fault_of
from services.kit.h2.hpack import literal, literals
from services.kit.h2.messages import (
    ENCODINGS,
    PREFIX,
    PREFIX_BYTES,
    Compressed,
    MessageError,
    MessageReader,
    compress,
)
from services.kit.h2.turns import Turns
from services.kit.net import host_of
from services.kit.telemetry import logs

_log = logs.get("h2")
_tracebacks = logs.Tracebacks()

_HTTP_METHODS: Final = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH")
)
_CONTENT_TYPE: Final = "application/grpc"
_GRPC: Final = re.compile(rb"application/grpc(?:$|[+;])")
# :status 200 and the content type: an index, then a literal with an indexed name.
_OK_HEAD: Final = b"\x88\x0f\x10\x10" + _CONTENT_TYPE.encode()
_HEAD_AND_DATA: Final = Struct(f">IBI{len(_OK_HEAD)}sIBIBI")
_OK_TRAILER: Final = literal("grpc-status", b"0")
_UNARY_BYTES: Final = 16 * 1024  # answers up to here leave as one piece

_FIRST_REQUEST_S: Final = 1.0
"""Time that a refused call waits for the first request of its stream, s."""
_FIRST_MESSAGE_S: Final = 3.0
"""Time that a call without a stream of requests waits for its message to begin, s."""
_OVERDUE_PAUSE_S: Final = 0.1
_SLOWEST_BYTES_PER_S: Final = 16 * 1024
_FIRST_PIECE_BYTES: Final = 64 * 1024
"""Size of what is decompressed on the event loop; the rest of a message is in a thread."""
_PIECE_BYTES: Final = 2**20
_DECOMPRESSING: Final = 4
_HEADS_BYTES: Final = 16 * 2**20
_HEAD_UNIT_BYTES: Final = 1024
_UNTAKEN_BYTES: Final = 32 * 2**20
_WAITING_PER_TAKEN: Final = 4
"""Bytes that may wait for each that the caller took lately, beyond those that any may have."""
_LAGS_S: Final = 1.0
"""Time in which a caller must take some of an answer where there is no room for others', s."""
_SWEEP_S: Final = 0.2
_CUT_SHORT: Final = 1024
_OPENING_EACH: Final = 16
"""Calls of a connection whose message is not there yet, and that never are too many."""

_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS_S: Final = {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0, b"M": 60.0, b"H": 3600.0}
_OWN_FIELDS: Final = frozenset({b"te", b"content-length"})
_MESSAGE_SAFE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_MOST_MESSAGE: Final = 4 * 1024
_CUT_ESCAPE: Final = re.compile("%[0-9A-F]?$")

_TOO_MANY: Final = "Concurrent RPC limit exceeded!"
_CANCELLED, _UNKNOWN, _DEADLINE, _EXHAUSTED = 1, 2, 4, 8
_UNIMPLEMENTED, _INTERNAL, _UNAUTHENTICATED = 12, 13, 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server's resources; the defaults are for calls of kilobytes between services.

    Attributes:
        message_bytes: Maximum size of a request; larger ones get RESOURCE_EXHAUSTED.
        receiving_bytes: Maximum size of all requests that come in pieces, together, bytes, or one
            request's; further ones get RESOURCE_EXHAUSTED. gRPC's C core has no such limit.
        connections: Maximum number of connections; further ones are closed at once.
        streams: Maximum number of calls at a time on one connection; further ones wait.
        calls: Maximum number of calls at a time; further ones get RESOURCE_EXHAUSTED. A call
            counts once its message is there. Where identities are checked, one caller may have
            half of them, and an eighth is kept for operators; so with connections and bytes.
        opening: Maximum number of calls whose message is not there yet, or KiB of their metadata;
            beyond it, a connection may have its share of them.
        handshake_s: Time that a connection has to speak HTTP/2, and TLS, s.
        dead_after_s: Time after which a silent client's calls end, s, >= 2.
        idle_s: Time after which a connection without calls is closed, s.
        age_s: Time after which a connection takes no new calls, s: clients connect again, with the
            certificate that they have then; calls in flight go on.
    """

    message_bytes: int = 2**20
    receiving_bytes: int = 2**28
    connections: int = 4096
    streams: int = 1000
    calls: int = 8192
    opening: int = 8192
    handshake_s: float = 10.0
    dead_after_s: float = 20.0
    idle_s: float = 600.0
    age_s: float = 3600.0


@dataclass
class ServerState:
    """State shared by all connections of a server.

    Attributes:
        handler: Returns the handler of a method; None: there is none.
        limits: What callers can take.
        encoding: Of answers, where the caller reads it: "", "gzip", "deflate".
        admit: Returns who makes a call, or refuses it; None: every caller may do everything.
        connections: Those that are open.
        calls: Room for calls that run.
        connected: Room for connections.
        received: Room for the bytes of requests that come in pieces, or were compressed.
        unread: Room for the bytes of answers to callers who take about as many.
        untaken: Room for the bytes of other answers: of callers who have not shown that they read.
        heads: Room for the bytes of headers that were parsed and may come again.
        turns: Turns of connections at the event loop.
        opening: Calls whose message is not there yet, with the KiB of their metadata.
        decompressing: Bounds the large messages that are decompressed at a time.
    """

    handler: Callable[[str], Handler]
    limits: Limits
    encoding: str = ""
    admit: Admit | None = None
    connections: set["ServerConnection"] = field(default_factory=set)
    opening: int = 0
    decompressing: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_DECOMPRESSING)
    )
    draining: bool = False
    swept_s: float = -math.inf

    def __post_init__(self) -> None:
        limits = self.limits
        self.calls, self.connected = Room(limits.calls), Room(limits.connections)
        self.received = Room(limits.receiving_bytes, limits.message_bytes)
        self.unread = Room(limits.receiving_bytes, limits.message_bytes)
        least = min(_UNTAKEN_BYTES, limits.receiving_bytes)
        self.untaken = Room(least, limits.message_bytes)
        self.heads, self.turns = Room(_HEADS_BYTES), Turns()

    def end_laggards(self, now_s: float) -> None:
        """Make room for answers: end calls that do not take theirs."""
        if now_s - self.swept_s < _SWEEP_S:
            return
        self.swept_s = now_s
        for connection in tuple(self.connections):
            connection.end_laggards(now_s)


class ServerConnection(Connection[RequestHead, Call]):
    """One client.

    Attributes:
        peer_name: Its address as gRPC writes it.
        identity: The names in its verified certificate, as grpc's auth_context has them.
    """

    def __init__(self, server: ServerState) -> None:
        super().__init__(
            server.limits.dead_after_s,
            expects_preface=True,
            heads=server.heads,
            turns=server.turns,
        )
        self._server, self._limits = server, server.limits
        self._leaving: int | None = None  # the last stream that is still taken
        self._born_s = self._busy_s = self.loop.time()
        self.peer_name = ""
        self.identity: Mapping[str, Sequence[bytes]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._payer = EVERYBODY
        self._waiting = 0  # bytes of answers in `unread`
        self._drained = (0, 0)  # at the last look, and the one before
        # Streams that ended here before their peer did: their DATA may be on its way.
        self._cut_short: dict[int, int | None] = {}  # and the length of what is to come, if given
        self._forgotten = 0  # the last stream that was too long ago to be among them
        self._opening = 0  # calls whose message is not there yet
        self._due_s = math.inf  # when `_overdue` runs
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, unless there are too many connections."""
        super().connection_made(transport)
        server = self._server
        self.peer_name, self.identity = peer.address(transport), peer.identity(transport)
        if server.admit is None:
            self._payer = local_or_host(host_of(self.peer_name))
        else:
            self._payer = server.admit("", Call(0, RequestHead(""), self))
        self.caller = self._payer.name
        if server.draining or not server.connected.take(self._payer):
            self.transport.abort()
            return
        server.connections.add(self)
        expires_s = peer.expires_s(transport)
        if expires_s is not None:
            self._expiry = self.loop.call_later(max(0.0, expires_s - time.time()), self._expired)

    def greeted(self) -> None:
        """Greet in return."""
        streams = {frames.MAX_CONCURRENT_STREAMS: self._limits.streams}
        self.write(self.open_windows(streams))

    # ---- in

    def read_head(self, fields: list[tuple[bytes, bytes]], cut: bool) -> RequestHead:
        """Return what the headers of a call say."""
        by_name = dict(fields)
        fault = fault_of(fields, by_name)
        if fault and not cut:
            return RequestHead("", fault=fault)
        path = by_name.get(b":path", b"").decode("latin-1")
        length = (
            int(by_name[b"content-length"]) if b"content-length" in by_name and not cut else None
        )
        refusal = _refusal(by_name, cut=cut)
        if refusal is not None:
            return RequestHead(path, refusal=refusal, length=length)
        if cut:
            reason = f"metadata of more than {HEADER_LIST_BYTES} bytes"
            return RequestHead(path, error=(_EXHAUSTED, reason))
        timeout_s, encoding = None, "identity"
        metadata = list[tuple[str, str | bytes]]()
        accepted: tuple[str, ...] = ()
        try:
            for key, value in fields:
                if key.startswith(b":") or key in _OWN_FIELDS or key == b"content-type":
                    continue
                if key == b"grpc-timeout":
                    timeout_s = _timeout_s(value)
                elif key == b"grpc-encoding":
                    encoding = value.decode("ascii")
                elif key == b"grpc-accept-encoding":
                    accepted = tuple(each.strip() for each in value.decode("ascii").split(","))
                else:
                    metadata.append(decoded(key, value))
        except ValueError as error:  # also binascii.Error, UnicodeDecodeError
            return RequestHead(path, error=(_INTERNAL, str(error) or "malformed metadata"))
        handler = self._server.handler(path)
        return RequestHead(
            path,
            tuple(metadata),
            timeout_s,
            handler,
            encoding,
            accepted,
            length=length,
            size=1 + sum([len(value) for _, value in fields]) // _HEAD_UNIT_BYTES,
        )

    def head_received(self, number: int, head: RequestHead, ended: int) -> None:
        """Begin a call."""
        if number in self.streams:  # trailers of a client, which gRPC has none of
            self._take_trailers(number, head, ended)
            return
        if not number & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"a client's stream {number}")
        if number <= self.last_stream:
            if number in self._cut_short:
                if not ended or head.fault != NO_PSEUDO_FIELDS:
                    self.end_stream(number, frames.PROTOCOL_ERROR, "trailers that are none")
                return
            if number <= self._forgotten:
                return
            raise ConnectionFault(frames.STREAM_CLOSED, "headers of a stream that has ended")
        self.last_stream = number
        self.check_it_reads()
        if head.fault or (ended and head.length):
            self.end_stream(number, frames.PROTOCOL_ERROR, head.fault or "no DATA")
            self._cut(number, None)
            return
        left = self._leaving is not None and number > self._leaving
        if left or len(self.streams) >= self._limits.streams:
            self.lose_patience("a stream beyond the limit")
            self.write(frames.reset(number, frames.REFUSED_STREAM))
            return
        call = Call(number, head, self)
        call.ended, call.length = bool(ended), head.length
        call.moved_s, call.payer = self.loop.time(), self._payer
        self.streams[number] = call
        self.nudges = min(self.nudges + NUDGES_PER_CALL, len(self.streams) * NUDGES_PER_CALL)
        if head.handler is None:
            self._decline(call, head)
        else:
            self._start(call, head, ended)

    def _start(self, call: Call, head: RequestHead, ended: int) -> None:
        """Begin a call of a method, once its caller is known."""
        server, handler = self._server, head.handler
        if server.admit is not None:
            try:
                call.payer = server.admit(head.path, call)
            except Refused as refused:
                self._refuse(call, refused.code, refused.details, refused.trailers)
                return
        if head.timeout_s is not None and head.timeout_s <= 0:
            self.end(call, _DEADLINE, "Deadline Exceeded")
        elif handler.request_streaming:
            if not server.calls.take(call.payer):
                self.end(call, _EXHAUSTED, _TOO_MANY)
            else:
                call.counted, call.inbox = True, deque()
                self._start_timer(call)
                call.task = self.loop.create_task(self._answer_stream(call, call))
        elif ended:
            self.end(call, _INTERNAL, "the request has no message")
        elif server.opening >= self._limits.opening and self._opening >= max(
            _OPENING_EACH, self._limits.opening // len(server.connections)
        ):
            self.end(call, _EXHAUSTED, "too many calls wait for their message")
        else:
            server.opening += head.size
            self._opening += head.size
            call.opening = True
            call.due_s = call.moved_s + min(_FIRST_MESSAGE_S, head.timeout_s or _FIRST_MESSAGE_S)
            if call.due_s < self._due_s:
                self._look_at(call.due_s)

    def _take_trailers(self, number: int, head: RequestHead, ended: int) -> None:
        """End a request with its trailers, which gRPC has none of."""
        call = self.streams[number]
        if call.ended:
            self.end_stream(number, frames.STREAM_CLOSED, "headers after the end of a stream")
        elif not ended or head.fault != NO_PSEUDO_FIELDS or call.length:
            self.end_stream(number, frames.PROTOCOL_ERROR, "trailers that are none")
        else:
            self.data_ended(call, ended=True)

    def _cut(self, number: int, length: int | None) -> None:
        """Remember a stream that ended here before it did there."""
        self._cut_short[number] = length
        if len(self._cut_short) > _CUT_SHORT:
            oldest = next(iter(self._cut_short))
            del self._cut_short[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def reset_after_end(self, number: int) -> None:
        """Expect nothing more of a stream."""
        self._cut_short.pop(number, None)

    def data_after_end(self, number: int, size: int, ended: int) -> None:
        """Refuse DATA that follow the end of their stream, unless it ended here only."""
        if number in self._cut_short:
            length = self._cut_short[number]
            if length is not None:
                self._cut_short[number] = left = length - size
                if left < 0 or (ended and left):
                    self._cut_short[number] = None
                    self.end_stream(number, frames.PROTOCOL_ERROR, "DATA unlike content-length")
            if ended:
                del self._cut_short[number]
        elif number > self._forgotten:
            self.end_stream(number, frames.STREAM_CLOSED, "DATA of a stream that is closed")

    def _decline(self, call: Call, head: RequestHead) -> None:
        if head.refusal is not None:
            status, reason = head.refusal
            body = reason.encode() + b"\n"
            block = literal(":status", str(status).encode())
            block += literal("content-type", b"text/plain; charset=utf-8")
            self.write(frames.frame(HEADERS, END_HEADERS, call.number, block))
            self.queue(call, body)
            self._end_after(call, frames.frame(frames.DATA, END_STREAM, call.number))
        elif head.error is not None:
            self.end(call, *head.error)
        else:
            self.end(call, _UNIMPLEMENTED, "Method not found!")

    def _refuse(self, call: Call, code: int, details: str, trailers: Metadata) -> None:
        """Refuse a call; one with a stream of requests as the first of them comes.

        A client of grpc.aio that is just sending it would say INTERNAL, not why it was refused.
        """
        if not call.head.handler.request_streaming:
            self.end(call, code, details, trailers)
            return
        call.inbox, call.refusal = deque(), (code, details, trailers)
        call.due_s = call.moved_s + _FIRST_REQUEST_S
        if call.due_s < self._due_s:
            self._look_at(call.due_s)

    def _look_at(self, due_s: float) -> None:
        """Look for calls that are overdue at a time, and no later."""
        if self._due is not None:
            self._due.cancel()
        self._due_s, self._due = due_s, self.loop.call_at(due_s, self._overdue)

    def _overdue(self) -> None:
        """End calls that did not send their first message in time."""
        now_s, next_s = self.loop.time(), math.inf
        self._due, self._due_s = None, math.inf
        for call in tuple(self.streams.values()):
            if call.due_s > now_s:
                next_s = min(next_s, call.due_s)
            elif call.refusal is not None:
                self.end(call, *call.refusal)
            elif call.time_remaining() == 0:
                self._too_late(call)
            else:
                self._stands_still(call, f"no message came within {_FIRST_MESSAGE_S:.0f} s")
        if next_s < math.inf:
            self._look_at(max(next_s, now_s + _OVERDUE_PAUSE_S))

    def _stands_still(self, call: Call, reason: str) -> None:
        self._stop(call)
        self.end(call, _CANCELLED, reason)
        if call.inbox is None:  # else `end` has sent one
            self.write(frames.reset(call.number, frames.CANCEL))

    def data_received_whole(self, stream: Call, view: memoryview, start: int, stop: int) -> bool:
        """Take a request that came in one frame: the usual case."""
        if stream.inbox is not None or stop - start < PREFIX_BYTES:
            return False
        compressed, size = PREFIX.unpack_from(view, start)
        if compressed or size != stop - start - PREFIX_BYTES or size > self._limits.message_bytes:
            return False
        stream.ended = True
        self._begin(stream, bytes(view[start + PREFIX_BYTES : stop]))
        return True

    def reader_of(self, stream: Call) -> MessageReader:
        """Return what cuts a call's DATA."""
        if stream.refusal is not None:
            raise MessageError("")
        # It has begun: from here the caller's deadline counts, and how fast the message comes.
        left_s = stream.time_remaining()
        stream.due_s = math.inf if left_s is None else self.loop.time() + left_s

        def take(message: bytes | bytearray | Compressed) -> None:
            if stream.inbox is not None:
                stream.inbox.append(message)
            elif stream.message is not None:
                raise MessageError("the request has more than one message")
            else:
                stream.message = message

        def take_compressed(message: bytes | bytearray) -> None:
            take(Compressed(message, encoding, most_bytes))

        encoding, most_bytes = stream.head.encoding, self._limits.message_bytes
        return MessageReader(
            take,
            most_bytes,
            partial(self._reserve, stream),
            take_compressed if encoding in ENCODINGS else None,
        )

    def took(self, stream: Call, count: int) -> None:
        """Keep back what comes while messages wait in the inbox of a stream."""
        if stream.inbox and not stream.over:
            stream.held += count
        else:
            self.consume(stream, count)

    def data_ended(self, stream: Call, *, ended: bool) -> None:
        """Run the handler once the request is there."""
        stream.ended = ended
        if stream.inbox is not None:
            waiter = stream.waiter
            if waiter is not None and (stream.inbox or ended):
                stream.waiter = None
                if not waiter.done():
                    waiter.set_result(None)
        elif ended and stream.task is None and not stream.over:
            if stream.message is None or (stream.reader is not None and not stream.reader.whole):
                self.end(stream, _INTERNAL, "the request has no whole message")
            else:
                self._begin(stream, stream.message)

    def message_refused(self, stream: Call, error: MessageError) -> None:
        """Answer what is wrong with the request, and read no more of it."""
        if stream.refusal is not None:
            self.end(stream, *stream.refusal)
            return
        self.lose_patience("a message that is not taken")
        self._stop(stream)
        self.end(stream, _EXHAUSTED if error.too_large else _INTERNAL, str(error))
        if stream.inbox is None:  # else `end` has sent it
            self.write(frames.reset(stream.number, frames.NO_ERROR))

    def stream_reset(self, stream: Call, code: int, *, by_peer: bool = True) -> None:
        """End a call whose caller has gone, or has broken the protocol."""
        if by_peer:
            stream.ended = True
        self.finish(stream)
        self._stop(stream)

    def lost(self) -> None:
        """End all calls."""
        if self in self._server.connections:
            self._server.connections.remove(self)
            self._server.connected.give_back(self._payer)
        for timer in (self._due, self._expiry):
            if timer is not None:
                timer.cancel()
        for call in tuple(self.streams.values()):
            self.finish(call)
            self._stop(call)

    def not_http2(self, first: bytes) -> None:
        """Answer 505 to an HTTP/1 client."""
        if first.split(b" ", 1)[0] in _HTTP_METHODS:
            self.write(
                b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n"
                b"Content-Type: text/plain\r\n\r\nthis port speaks gRPC over HTTP/2\n"
            )
        self.close()

    def release(self, call: Call, count: int) -> None:
        """Give back room that a request in pieces has taken."""
        call.reserved -= count
        self._server.received.give_back(call.payer, count)

    # ---- the handlers

    def _reserve(self, call: Call, size: int) -> None:
        """Take room for bytes of a message.

        Raises:
            MessageError: There is none.
        """
        if not self._server.received.take(call.payer, size):
            raise MessageError("the server receives as much as it may at a time", too_large=True)
        call.reserved += size

    async def _go_on(self, call: Call, message: Compressed) -> None:
        """Decompress the rest of a message in a thread, a piece at a time."""
        while not message.done and not call.over:
            before = len(message.found)
            await self.loop.run_in_executor(None, message.go_on, _PIECE_BYTES)
            if not call.over:
                self._reserve(call, len(message.found) - before)

    async def decompressed(self, call: Call, message: Compressed) -> bytearray:
        """Return a message decompressed, within the room of its caller, or refuse its call.

        Raises:
            asyncio.CancelledError: The call is over.
        """
        try:
            while not message.done and not call.over:
                if message.found:
                    async with self._server.decompressing:
                        await self._go_on(call, message)
                else:
                    message.go_on(_FIRST_PIECE_BYTES)
                    self._reserve(call, len(message.found))
        except MessageError as error:
            message.found = bytearray()  # the error may keep the message for a while
            try:
                self.message_refused(call, error)
            except ConnectionFault as fault:
                self.fail(fault)
        if call.over:
            raise asyncio.CancelledError
        return message.found

    def _begin(self, call: Call, message: bytes | bytearray | Compressed) -> None:
        if call.reserved:
            self.release(call, call.reserved)
        call.reader = call.message = None
        call.opening, call.due_s = False, math.inf
        self._opening -= call.head.size
        self._server.opening -= call.head.size
        if not self._server.calls.take(call.payer):
            self.end(call, _EXHAUSTED, _TOO_MANY)
            return
        call.counted = True
        if call.head.timeout_s is not None:
            self._start_timer(call)
        run = self._answer_stream if call.head.handler.response_streaming else self._answer_one
        call.task = self.loop.create_task(run(call, message))

    def _start_timer(self, call: Call) -> None:
        left_s = call.time_remaining()
        if left_s is not None:
            call.timer = self.loop.call_later(left_s, self._too_late, call)

    def _too_late(self, call: Call) -> None:
        if not call.over:
            self._stop(call)
            if call.outbox:  # what waits for room would come too late, too
                call.outbox.clear()
            self.end(call, _DEADLINE, "Deadline Exceeded")

    async def _answer_one(self, call: Call, message: bytes | bytearray | Compressed) -> None:
        try:
            handler = call.head.handler
            if isinstance(message, Compressed):
                message = await self.decompressed(call, message)
            deserialize = handler.request_deserializer
            request = message if deserialize is None else deserialize(message)
            answer = await handler.unary_unary(request, call)
            if not call.over:
                serialize = handler.response_serializer
                self._answer(call, answer if serialize is None else serialize(answer))
        except BaseException as error:
            self._failed(call, error)
            if not isinstance(error, Exception):
                raise

    async def _answer_stream(self, call: Call, request: Any) -> None:
        try:
            handler = call.head.handler
            if isinstance(request, Compressed):
                request = await self.decompressed(call, request)
            if request is not call:
                request = call.read(request)
            if handler.stream_unary is not None:
                answer = await handler.stream_unary(request, call)
                serialize = handler.response_serializer
                self._answer(call, answer if serialize is None else serialize(answer))
                return
            behaviour = handler.stream_stream or handler.unary_stream
            if inspect.iscoroutinefunction(behaviour):  # it sends with context.write
                await behaviour(request, call)
            else:
                async for response in behaviour(request, call):
                    await call.write(response)
            self.end(call, *call.status())
        except Exception as error:  # noqa: BLE001 - the border: every error becomes a status here
            await self._first_request(call)
            self._failed(call, error)
        except BaseException as error:
            self._failed(call, error)
            raise

    async def _first_request(self, call: Call) -> None:
        """Wait a little for the first request of a stream, before its call is refused.

        A client of grpc.aio that is just sending it would say INTERNAL, not why it was refused.
        """
        if call.inbox is None or call.reader is not None or call.ended or call.over:
            return
        call.waiter = self.loop.create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_REQUEST_S):
                await call.waiter

    def _failed(self, call: Call, error: BaseException) -> None:
        if call.over:
            return
        self.regain_patience()
        if isinstance(error, grpc.aio.AbortError):
            self.end(call, *call.status())
        elif isinstance(error, asyncio.CancelledError):
            self.end(call, _CANCELLED, "")
        else:
            if isinstance(error, Exception):
                _log.error("unhandled error", method=call.head.path, **_tracebacks.details(error))
            self.end(call, _UNKNOWN, "internal error")

    # ---- out

    def _answer(self, call: Call, message: bytes) -> None:
        """Send the only message of an answer, and its end."""
        if call.over:
            return
        code, details, trailers = call.status()
        total = len(message) + PREFIX_BYTES
        encoding = self._server.encoding
        if (
            code
            or total > min(_UNARY_BYTES, self.send_window, call.send_window)
            or self.write_paused
            or (encoding and encoding in call.head.accepted)
        ):
            if code:
                self.regain_patience()
            else:
                self.send(call, message)
            self.end(call, code, details, trailers)
            return
        if self.impatience:
            self.regain_patience()
        self.send_window -= total
        trailer = _OK_TRAILER if not trailers else _OK_TRAILER + _fields(trailers)
        number = call.number
        self.write(
            b"%b%b%b%b%b"
            % (
                _HEAD_AND_DATA.pack(
                    len(_OK_HEAD) << 8 | HEADERS,
                    END_HEADERS,
                    number,
                    _OK_HEAD,
                    total << 8,
                    0,
                    number,
                    0,
                    len(message),
                ),
                message,
                HEAD.pack(len(trailer) << 8 | HEADERS, END_HEADERS | END_STREAM, number),
                trailer,
                b"" if call.inbox is None else _farewell(call),
            )
        )
        self.finish(call)

    def send(self, call: Call, message: bytes) -> None:
        """Send one message, as far as the caller's windows let it."""
        if self.impatience:
            self.regain_patience()
        encoding = self._server.encoding
        compressed = bool(encoding) and encoding in call.head.accepted
        if not call.opened:
            call.opened = True
            head = _OK_HEAD
            if compressed:
                head += literal("grpc-encoding", encoding.encode())
            self.write(frames.frame(HEADERS, END_HEADERS, call.number, head))
        if compressed:
            data = compress(message, encoding)
            self.queue(call, PREFIX.pack(1, len(data)) + data)
        else:
            self.send_message(call, (message,), len(message))
        if call.outbox:
            self._bound_unread(call, call.outbox)

    def _bound_unread(self, call: Call, outbox: deque[memoryview | bytes]) -> None:
        """Take room for an answer that its caller has no window for, or end the call."""
        server, size, now_s = self._server, sum(map(len, outbox)), self.loop.time()
        if size <= call.unread:
            return
        self.was_read(call)
        call.stuck = size, now_s
        taken = self.drained - self._drained[1]
        if self._waiting + size <= _WAITING_PER_TAKEN * taken and self._hold(
            call, size, server.unread
        ):
            return
        if not self._hold(call, size, server.untaken):
            server.end_laggards(now_s)
            if not call.over and not self._hold(call, size, server.untaken):
                self._end_unread(call)

    def _hold(self, call: Call, size: int, room: Room) -> bool:
        """Take room for the bytes of an answer; False: there is none."""
        size = min(size, room.share)
        if not room.take(call.payer, size):
            return False
        call.unread, call.room = size, room
        if room is self._server.unread:
            self._waiting += size
        return True

    def was_read(self, call: Call) -> None:
        """Give back room that answers have taken."""
        if call.room is not None:
            call.room.give_back(call.payer, call.unread)
            if call.room is self._server.unread:
                self._waiting -= call.unread
            call.unread, call.room = 0, None

    def _end_unread(self, call: Call) -> None:
        if call.outbox:
            call.outbox.clear()
        self.end(call, _EXHAUSTED, "answers are not read")

    def end_laggards(self, now_s: float) -> None:
        """End calls that do not take their answers, where others need the room."""
        for call in tuple(self.streams.values()):
            if call.room is self._server.untaken and self._lags(call, now_s) > _LAGS_S:
                self._stop(call)
                self._end_unread(call)

    def _lags(self, call: Call, now_s: float) -> float:
        """Return how long the caller has taken nearly nothing of an answer, s."""
        left = sum(map(len, call.outbox or ()))
        size, since_s = call.stuck
        if since_s and size - left < _SLOWEST_BYTES_PER_S * (now_s - since_s):
            return now_s - since_s
        call.stuck = left, now_s
        return 0.0

    def end(self, call: Call, code: int, details: str, trailers: Metadata = ()) -> None:
        """Send the status of a call, after what still waits."""
        if call.over:
            return
        block = b"" if call.opened else _OK_HEAD
        block += literal("grpc-status", str(code).encode())
        if details:
            message = quote(details[:_MOST_MESSAGE], safe=_MESSAGE_SAFE)[:_MOST_MESSAGE]
            block += literal("grpc-message", _CUT_ESCAPE.sub("", message).encode())
        fields = _fields(trailers or ())
        if len(block) + len(fields) <= frames.DEFAULT_FRAME_BYTES:  # else the message is enough
            block += fields
        head = HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS | END_STREAM, call.number)
        self._end_after(call, head + block + _farewell(call))

    def _end_after(self, call: Call, last: bytes) -> None:
        """Send the last frames of a call after what still waits."""
        if call.outbox:
            call.outbox.append(last)
            return
        self.write(last)
        self.finish(call)

    def finish(self, stream: Call) -> None:
        """Forget a call on which all is said."""
        if stream.over:
            return
        super().finish(stream)
        if not stream.ended:
            self._cut(stream.number, stream.length)
        if stream.reserved or stream.unread:
            self.release(stream, stream.reserved)
            self.was_read(stream)
        # They refer to one another; a large request must not wait for the garbage collector.
        stream.reader = stream.message = None
        if stream.counted:
            stream.counted = False
            self._server.calls.give_back(stream.payer)
        elif stream.opening:
            self._opening -= stream.head.size
            self._server.opening -= stream.head.size
        if stream.timer is not None:
            stream.timer.cancel()
        if stream.sent_all is not None and not stream.sent_all.done():
            stream.sent_all.set_result(None)
        if not self.streams:
            self._busy_s = self.loop.time()
            if self._leaving is not None:
                self.loop.call_soon(self._leave_if_idle)

    def _stop(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()

    # ---- time

    def looked(self, now_s: float) -> None:
        """End what stands still, and connections that are old or idle."""
        for call in tuple(self.streams.values()):
            piece = None if call.reader is None else call.reader.partial
            if piece is not None and (
                now_s - call.moved_s > self._limits.dead_after_s
                or (
                    call.opening
                    and now_s - call.begun_s
                    > self._limits.dead_after_s + piece.received / _SLOWEST_BYTES_PER_S
                )
            ):
                self._stands_still(call, "the request does not go on")
            elif call.outbox:
                self._look_at_answer(call, now_s)
        self._drained = self.drained, self._drained[0]
        if self._leaving is None and (
            now_s - self._born_s > self._limits.age_s
            or (not self.streams and now_s - self._busy_s > self._limits.idle_s)
        ):
            self.leave()

    def _look_at_answer(self, call: Call, now_s: float) -> None:
        """End a call whose caller takes nothing of its answer, at once where room is short."""
        lags_s = self._lags(call, now_s)
        outbox = call.outbox
        ended = isinstance(outbox[-1], bytes) if outbox else False
        if ended and lags_s > self._limits.dead_after_s:
            self.finish(call)
            self.write(frames.reset(call.number, frames.CANCEL))
        elif lags_s > _LAGS_S and call.room is self._server.unread:
            size = call.unread
            self.was_read(call)
            if not self._hold(call, size, self._server.untaken):
                self._stop(call)
                self._end_unread(call)

    def leave(self) -> None:
        """Take no new calls, after those that are on their way (RFC 9113, 6.8)."""
        if self._leaving is None and not self.transport.is_closing():
            self._leaving = frames.MAX_WINDOW
            self.write(frames.goaway(frames.MAX_WINDOW, frames.NO_ERROR))
            self.write(frames.frame(frames.PING, 0, 0, _LEAVING))
            self.loop.call_later(_LEAVING_S, self._name_last)

    def ping_answered(self, payload: bytes) -> None:
        """Name the last stream, once the client knows that there are to be no more."""
        if payload == _LEAVING:
            self._name_last()

    def _name_last(self) -> None:
        if self._leaving == frames.MAX_WINDOW and not self.transport.is_closing():
            self._leaving = self.last_stream
            self.write(frames.goaway(self.last_stream, frames.NO_ERROR))
            self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if not self.streams and self._leaving != frames.MAX_WINDOW:
            self._close_soon()

    def _close_soon(self) -> None:
        """Close, and wait no longer than some seconds for a client that reads nothing."""
        self.close()
        self.loop.call_later(_LEAVING_S, self._abort)

    def _abort(self) -> None:
        if self in self._server.connections:
            self.transport.abort()

    def _expired(self) -> None:
        """End the calls of a client whose certificate has expired, and its connection."""
        for call in tuple(self.streams.values()):
            self._stop(call)
            if call.outbox:
                call.outbox.clear()
            self.end(call, _UNAUTHENTICATED, "the client's certificate has expired")
        self._leaving = self.last_stream
        self.write(frames.goaway(self.last_stream, frames.NO_ERROR))
        self._close_soon()


_LEAVING: Final = b"leaving!"
_LEAVING_S: Final = 5.0
"""Time that a client has to take note that its connection ends, s."""


def _refusal(fields: Mapping[bytes, bytes], *, cut: bool) -> tuple[int, str] | None:
    """Return why this is no call of gRPC, as an answer of HTTP; None: it is one."""
    if fields.get(b":method") != b"POST":
        return 405, "this port speaks gRPC: POST"
    if _GRPC.match(fields.get(b"content-type", b"")) is None:
        if cut:
            return 431, f"a header list of more than {HEADER_LIST_BYTES} bytes"
        return 415, f"this port speaks gRPC: content-type {_CONTENT_TYPE}"
    return None


def _farewell(call: Call) -> bytes:
    """Return the reset after an answer to requests that have not ended (RFC 9113, 8.1); else b"".

    Without it, grpc's C core may see the connection close before it takes the answer as the end.
    """
    if call.inbox is None or call.ended:
        return b""
    return frames.reset(call.number, frames.NO_ERROR)


def _timeout_s(value: bytes) -> float:
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise ValueError(f"grpc-timeout: {value!r} must be up to 8 digits and one of H M S m u n")
    return int(found[1]) * _UNITS_S[found[2]]


def _fields(metadata: Metadata) -> bytes:
    fields = []
    for key, value in metadata:
        if isinstance(value, bytes) or key.endswith("-bin"):
            fields.append((key, encoded(value, binary=key.endswith("-bin"))))
        else:
            fields.append((key, value.encode()))
    return literals(fields)

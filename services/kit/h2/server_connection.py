"""A client's connection: calls in, and its life; answers leave by its other sides.

Source: PROTOCOL-HTTP2.md, "Requests" and "Responses".
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from services.kit import peer
from services.kit.h2 import frames
from services.kit.h2.admission import EVERYBODY, Refused, local_or_host
from services.kit.h2.answering_side import SLOWEST_BYTES_PER_S
from services.kit.h2.call import Call, Metadata, RequestHead
from services.kit.h2.connection import NUDGES_PER_CALL
from services.kit.h2.frames import END_HEADERS, END_STREAM, HEADERS, ConnectionFault
from services.kit.h2.handling_side import FIRST_REQUEST_S, TOO_MANY, HandlingSide
from services.kit.h2.header_rules import NO_PSEUDO_FIELDS
from services.kit.h2.hpack import literal
from services.kit.h2.messages import (
    ENCODINGS,
    PREFIX,
    PREFIX_BYTES,
    Compressed,
    MessageError,
    MessageReader,
)
from services.kit.h2.request_headers import read_request_head
from services.kit.h2.server_state import ServerState
from services.kit.net import host_of

_HTTP_METHODS: Final = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH")
)
_FIRST_MESSAGE_S: Final = 3.0
"""Time that a call without a stream of requests waits for its message to begin, s."""
_OVERDUE_PAUSE_S: Final = 0.1
_CUT_SHORT: Final = 1024
_OPENING_EACH: Final = 16
"""Calls of a connection whose message is not there yet, and that never are too many."""
_LEAVING: Final = b"leaving!"
_LEAVING_S: Final = 5.0
"""Time that a client has to take note that its connection ends, s."""
_CANCELLED, _DEADLINE, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL, _UNAUTHENTICATED = 1, 4, 8, 12, 13, 16


class ServerConnection(HandlingSide):
    """One client.

    Attributes:
        peer_name: Its address as gRPC writes it.
        identity: The names in its verified certificate, as grpc's auth_context has them.
    """

    def __init__(self, server: ServerState) -> None:
        super().__init__(server)
        self._leaving: int | None = None  # the last stream that is still taken
        self._born_s = self._busy_s = self.loop.time()
        self.peer_name = ""
        self.identity: Mapping[str, Sequence[bytes]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._payer = EVERYBODY
        # Streams that ended here before their peer did: their DATA may be on its way.
        self._cut_short: dict[int, int | None] = {}  # and the length of what is to come, if given
        self._forgotten = 0  # the last stream that was too long ago to be among them
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

    # ---- in

    def read_head(self, fields: list[tuple[bytes, bytes]], cut: bool) -> RequestHead:
        """Return what the headers of a call say."""
        return read_request_head(fields, self._server.handler, cut=cut)

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
                self.end(call, _EXHAUSTED, TOO_MANY)
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
        call.due_s = call.moved_s + FIRST_REQUEST_S
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

    def is_rapid(self, stream: Call) -> bool:
        """Return whether a call was withdrawn at once, and unanswered.

        Envoy ends each of its calls to an external processor by a reset, once it was answered.
        """
        return not stream.opened and super().is_rapid(stream)

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
                    > self._limits.dead_after_s + piece.received / SLOWEST_BYTES_PER_S
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

"""The answering side of a client's connection: answers, their ends, and room for what waits.

Source: PROTOCOL-HTTP2.md, "Responses".
"""

import re
from collections import deque
from struct import Struct
from typing import Final
from urllib.parse import quote

from services.kit.h2 import frames
from services.kit.h2.admission import Room
from services.kit.h2.call import Call, Metadata, RequestHead, encoded
from services.kit.h2.connection import Connection
from services.kit.h2.frames import END_HEADERS, END_STREAM, HEAD, HEADERS
from services.kit.h2.hpack import literal, literals
from services.kit.h2.messages import PREFIX, PREFIX_BYTES, compress
from services.kit.h2.request_headers import CONTENT_TYPE
from services.kit.h2.server_state import ServerState

SLOWEST_BYTES_PER_S: Final = 16 * 1024
"""Bytes of a message that a client must send, or take, per second."""

# :status 200 and the content type: an index, then a literal with an indexed name.
_OK_HEAD: Final = b"\x88\x0f\x10\x10" + CONTENT_TYPE.encode()
_HEAD_AND_DATA: Final = Struct(f">IBI{len(_OK_HEAD)}sIBIBI")
_OK_TRAILER: Final = literal("grpc-status", b"0")
_UNARY_BYTES: Final = 16 * 1024  # answers up to here leave as one piece
_WAITING_PER_TAKEN: Final = 4
"""Bytes that may wait for each that the caller took lately, beyond those that any may have."""
_LAGS_S: Final = 1.0
"""Time in which a caller must take some of an answer where there is no room for others', s."""
_MESSAGE_SAFE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_MOST_MESSAGE: Final = 4 * 1024
_CUT_ESCAPE: Final = re.compile("%[0-9A-F]?$")
_EXHAUSTED: Final = 8


class AnsweringSide(Connection[RequestHead, Call]):
    """Sends the answers of a client's connection."""

    def __init__(self, server: ServerState) -> None:
        super().__init__(
            server.limits.dead_after_s,
            expects_preface=True,
            heads=server.heads,
            turns=server.turns,
        )
        self._server, self._limits = server, server.limits
        self._waiting = 0  # bytes of answers in `unread`
        self._drained = (0, 0)  # at the last look, and the one before

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
        if since_s and size - left < SLOWEST_BYTES_PER_S * (now_s - since_s):
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

    def _stop(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()


def _farewell(call: Call) -> bytes:
    """Return the reset after an answer to requests that have not ended (RFC 9113, 8.1); else b"".

    Without it, grpc's C core may see the connection close before it takes the answer as the end.
    """
    if call.inbox is None or call.ended:
        return b""
    return frames.reset(call.number, frames.NO_ERROR)


def _fields(metadata: Metadata) -> bytes:
    fields = []
    for key, value in metadata:
        if isinstance(value, bytes) or key.endswith("-bin"):
            fields.append((key, encoded(value, binary=key.endswith("-bin"))))
        else:
            fields.append((key, value.encode()))
    return literals(fields)

"""One connection of HTTP/2: frames in, flow control of what comes, and bounds for the peer.

A server's and a client's connection differ in what a header block means and what its end does.
Source: RFC 9113; limits against floods: its section 10.5.
"""

import asyncio
import threading
import time
from typing import Final, Generic, TypeVar, cast

from services.kit.h2 import frames
from services.kit.h2.admission import Room
from services.kit.h2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    RESET,
    SETTINGS,
    UINT32,
    WINDOW,
    ConnectionFault,
)
from services.kit.h2.hpack import HeaderBlocks, HpackError
from services.kit.h2.messages import PREFIX_BYTES, MessageError, MessageReader, Partial
from services.kit.h2.sending import STREAM_WINDOW, SendingSide, Streams
from services.kit.h2.turns import CALL_S, Turns

READ_BYTES: Final = 256 * 1024
MAX_DATA_BYTES: Final = 4 * 2**20
"""Size of DATA frames that peers may send: they are taken in as they come."""
CONNECTION_WINDOW: Final = 16 * 2**20
HEADER_LIST_BYTES: Final = 16 * 1024

_DIRECT_BYTES: Final = 32 * 1024  # from here a read goes straight to where its message stays
_WRITE_BUFFER_BYTES: Final = 2**20
_BLOCK_BYTES: Final = READ_BYTES // 2  # larger lists than we take are read, and discarded
_CONTINUATIONS: Final = 16
_FRAMES_A_LOOK: Final = 16  # frames between two looks at the clock; a head counts as four
_FAREWELL_S: Final = 0.5
_LOOKS: Final = 3  # within `dead_after_s`: two silent ones end a connection
# Frames that make work and bring nothing: so many at once, so many a second, and one per answer.
_PATIENCE: Final = 1000.0
_PATIENCE_PER_S: Final = 200.0
_RAPID_S: Final = 1.0  # a call withdrawn later than this has waited, and is free
NUDGES_PER_CALL: Final = 2
"""WINDOW_UPDATEs of a few bytes that are free: grpc's C core sends them as it reads an answer."""

_PLAIN_HEADERS: Final = END_HEADERS | PADDED | PRIORITIZED

Head = TypeVar("Head")


class _ReadBuffer(threading.local):
    """One buffer for all connections of a loop: what a read leaves unparsed stays with its own."""

    def __init__(self) -> None:
        self.data = bytearray(READ_BYTES)
        self.view = memoryview(self.data)


_read_buffer = _ReadBuffer()


class Connection(SendingSide[Streams], asyncio.BufferedProtocol, Generic[Head, Streams]):
    """A connection.

    Attributes:
        last_stream: Highest number of a stream that a peer opened, or that was opened here.
        nudges: WINDOW_UPDATEs of a few bytes that are still free.
        impatience: Frames that brought nothing, less those that time and answers made up for.
        caller: Name of the peer, whose connections share their turns.
    """

    def __init__(
        self,
        dead_after_s: float,
        *,
        expects_preface: bool,
        heads: Room | None = None,
        turns: Turns | None = None,
    ) -> None:
        """Make a connection.

        Args:
            dead_after_s: Time after which a silent peer is given up, s.
            expects_preface: Whether the peer opens with HTTP/2's preface.
            heads: Room for the parsed header blocks of all connections; None: own room.
            turns: Turns of all connections; None: own ones.
        """
        super().__init__()
        self.caller = ""
        self._turns = turns or Turns()
        self.last_stream = 0
        self.nudges = NUDGES_PER_CALL
        self._receive_window = DEFAULT_WINDOW
        self._consumed = 0
        self._blocks: HeaderBlocks[Head] = HeaderBlocks(self.read_head, HEADER_LIST_BYTES, heads)
        self._preface_left = len(PREFACE) if expects_preface else 0
        self._left = b""
        self._rest = 0  # bytes of a DATA frame that are still to come, of which stream, and whether
        self._rest_stream = 0  # they end it
        self._rest_ends = 0
        self._direct: Streams | None = None  # whose message in pieces the next read goes to
        self._block: tuple[int, int, bytearray, int] | None = None  # whose CONTINUATIONs come
        self._depends_on_itself = False
        self.impatience = 0.0
        self._patience_s = time.monotonic()
        self._heard = True
        self._settings_seen = False
        self._dead_after_s = dead_after_s
        self._over = False
        self._silent_looks = 0
        self._unread = 0  # bytes that the peer had not read at the last look
        self._watch: asyncio.TimerHandle | None = None

    # ---- what the two kinds of connection differ in

    def read_head(self, fields: list[tuple[bytes, bytes]], cut: bool) -> Head:
        """Return what a header block means; `cut`: there were more fields than are taken."""
        raise NotImplementedError

    def head_received(self, number: int, head: Head, ended: int) -> None:
        """Take a header block of a stream."""
        raise NotImplementedError

    def data_received_whole(self, stream: Streams, view: memoryview, start: int, stop: int) -> bool:
        """Take a stream's only DATA, view[start:stop]; False: they are not a whole message."""
        return False

    def reader_of(self, stream: Streams) -> MessageReader:
        """Return what cuts a stream's DATA.

        Raises:
            MessageError: None of them is taken.
        """
        raise NotImplementedError

    def data_ended(self, stream: Streams, *, ended: bool) -> None:
        """Note that DATA has been read, and whether the peer sends no more."""
        raise NotImplementedError

    def message_refused(self, stream: Streams, error: MessageError) -> None:
        """End a stream whose message cannot be taken."""
        raise NotImplementedError

    def stream_reset(self, stream: Streams, code: int, *, by_peer: bool = True) -> None:
        """End a stream that was reset."""
        raise NotImplementedError

    def reset_after_end(self, number: int) -> None:
        """Note that the peer has reset a stream that is over."""

    def data_after_end(self, number: int, size: int, ended: int) -> None:
        """Take note of DATA of a stream that is over."""

    def lost(self) -> None:
        """Note that the connection is gone."""
        raise NotImplementedError

    def looked(self, now_s: float) -> None:
        """Do what is due from time to time."""

    # ---- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._watch = self.loop.call_later(self._dead_after_s / _LOOKS, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        """End every stream."""
        if self._watch is not None:
            self._watch.cancel()
        self._blocks.forget()
        self.lost()

    def eof_received(self) -> bool:
        """Close, as HTTP/2 knows no half-closed connection."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to: large messages go straight to where they stay."""
        stream = self._direct
        if stream is not None and not stream.over:
            partial = stream.reader.partial if stream.reader is not None else None
            if partial is not None and self._rest >= _DIRECT_BYTES:
                end = min(partial.received + self._rest, partial.size)
                if end - partial.received >= _DIRECT_BYTES:
                    return partial.view[partial.received : end]
        self._direct = None
        left = self._left
        if left:
            _read_buffer.data[: len(left)] = left
            return _read_buffer.view[len(left) :]
        return _read_buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what was read into frames."""
        self._heard = True
        if self._over:
            self._left, self._direct = b"", None
            return
        try:
            if self._direct is not None:
                self._read_direct(self._direct, nbytes)
            else:
                self._read_frames(len(self._left) + nbytes)
        except ConnectionFault as fault:
            self.fail(fault)
        except HpackError as error:
            self.fail(ConnectionFault(frames.COMPRESSION_ERROR, str(error)))

    def _pause(self) -> None:
        """Give other connections their turns, before more of this one is read."""
        self.transport.pause_reading()
        self._turns.wait(self.caller, self._go_on_reading)

    def _go_on_reading(self) -> None:
        if self._over or self.transport.is_closing():
            return
        self.transport.resume_reading()
        _read_buffer.data[: len(self._left)] = self._left
        self.buffer_updated(0)

    # ---- in

    def _read_direct(self, stream: Streams, count: int) -> None:
        reader = stream.reader
        self._rest -= count
        if reader is None or reader.partial is None:
            return
        reader.partial.received += count
        try:
            reader.take_room(count)
            reader.finish()
        except MessageError as error:
            self._direct = None
            self.message_refused(stream, error)
            return
        if reader.partial is None:
            self._direct = None
        stream.moved_s = self.loop.time()
        self.took(stream, count)
        self.data_ended(stream, ended=bool(not self._rest and self._rest_ends))

    def _read_frames(self, end: int) -> None:  # noqa: C901 - the usual frames are taken inline
        view, position = _read_buffer.view, 0
        self._left = b""
        if self._preface_left:
            position = self._read_preface(bytes(view[: min(end, self._preface_left)]))
            if not position:
                return
        if self._rest:
            position = min(self._rest, end)
            self._read_rest(view, position)
        unpack, calls, seen, turns = HEAD.unpack_from, 0, 0, self._turns
        began_s, ends_s = time.perf_counter(), 0.0
        while end - position >= HEAD_BYTES:
            seen += 1
            if seen > _FRAMES_A_LOOK:
                seen = 0
                ends_s = ends_s or began_s + turns.slice_s()  # few frames never get here
                if time.perf_counter() + calls * CALL_S > ends_s:
                    self._pause()
                    break
            word, flags, number = unpack(view, position)
            kind, start = word & 0xFF, position + HEAD_BYTES
            stop = start + (word >> 8)
            if stop > end:
                position = self._begin_large(kind, flags, number, view, start, stop, end, position)
                break
            if self._block is not None or not self._settings_seen:
                self._check_order(kind)
            if kind == DATA:
                more = end - stop >= HEAD_BYTES and not flags
                if more and (gathered := self._gather(view, position, end)) > position:
                    position = gathered
                    continue
                number &= frames.MAX_WINDOW
                self._data_frame(flags, number, view, start, stop, stop - start)
            elif kind == HEADERS and flags & _PLAIN_HEADERS == END_HEADERS:
                head = self._blocks.read(bytes(view[start:stop]))
                self.head_received(number & frames.MAX_WINDOW, head, flags & END_STREAM)
                calls += 1
                seen += 3
            else:
                self._control(kind, flags, number & frames.MAX_WINDOW, bytes(view[start:stop]))
            position = stop
        self._left = bytes(view[position:end])
        turns.spend(time.perf_counter() - began_s, calls)

    def _read_rest(self, view: memoryview, count: int) -> None:
        """Take more of a large frame of DATA, of a stream that may be over meanwhile."""
        self._rest -= count
        stream = self.streams.get(self._rest_stream)
        if stream is None:
            self.consume(None, count)
        else:
            ends = not self._rest and self._rest_ends
            self._data(stream, self._rest_stream, view, 0, count, ends)

    def _read_preface(self, opening: bytes) -> int:
        """Return how long it was; 0: it is not all there, or the peer speaks something else."""
        if not PREFACE.startswith(opening):
            self.not_http2(opening)
            return 0
        if len(opening) < self._preface_left:
            self._left = opening
            return 0
        self._preface_left = 0
        self.greeted()
        return len(opening)

    def _check_order(self, kind: int) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block is interrupted")
        if not self._settings_seen and kind != SETTINGS:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame must be SETTINGS")

    def _begin_large(  # noqa: PLR0913, PLR0917 - one frame's layout
        self,
        kind: int,
        flags: int,
        number: int,
        view: memoryview,
        start: int,
        stop: int,
        end: int,
        position: int,
    ) -> int:
        """Take the beginning of a frame that is not all there; return where unread bytes begin."""
        size, number = stop - start, number & frames.MAX_WINDOW
        if kind != DATA or self._block is not None or not self._settings_seen:
            _check_size(kind, size)
            return position
        if size > MAX_DATA_BYTES:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"DATA of {size} bytes")
        if flags & PADDED:
            if size + HEAD_BYTES > READ_BYTES // 2:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"padded DATA of {size} bytes")
            return position
        if size <= frames.DEFAULT_FRAME_BYTES:
            return position
        self._rest, self._rest_stream, self._rest_ends = stop - end, number, flags & END_STREAM
        self._data_frame(0, number, view, start, end, size)
        return end

    def _gather(self, view: memoryview, position: int, end: int) -> int:
        """Take the frames of messages in pieces that are neither their last nor unusual.

        A peer that sends frames of 16 KiB sends an image in 37 of them, and by turns of several
        images. The windows, and what goes with them, are seen to once for each image.

        Returns:
            Where the first frame begins that was not taken.
        """
        unpack = HEAD.unpack_from
        taken: dict[int, tuple[Streams, Partial, int, int]] = {}
        room = self._receive_window
        while end - position >= HEAD_BYTES:
            word, flags, number = unpack(view, position)
            count, start = word >> 8, position + HEAD_BYTES
            stop = start + count
            if word & 0xFF or flags or stop > end or not PREFIX_BYTES <= count <= room:
                break
            found = taken.get(number)
            if found is None:
                stream = self.streams.get(number)
                reader = None if stream is None else stream.reader
                partial = None if reader is None else reader.partial
                if stream is None or partial is None or stream.length is not None:
                    break
                begun = partial.received
                most = min(partial.size - 1, begun + stream.receive_window)
                found = taken[number] = stream, partial, begun, most
            partial, received = found[1], found[1].received
            after = received + count
            if after > found[3]:
                break
            partial.view[received:after] = view[start:stop]
            partial.received = after
            room -= count
            position = stop
        for stream, partial, begun, _ in taken.values():
            self._charge(stream, partial.received - begun)
        return position

    def _charge(self, stream: Streams, count: int) -> None:
        """Charge the windows for pieces of a message that were taken."""
        self._receive_window -= count
        stream.receive_window -= count
        try:
            if stream.reader is not None:
                stream.reader.take_room(count)
        except MessageError as error:
            self.consume(None, count)
            self.message_refused(stream, error)
            return
        stream.moved_s = self.loop.time()
        self.took(stream, count)

    def _data_frame(  # noqa: PLR0913, PLR0917 - one frame's layout
        self, flags: int, number: int, view: memoryview, start: int, stop: int, size: int
    ) -> None:
        """Charge the windows for a frame of DATA of `size` bytes, and take view[start:stop] of it.

        Less than `size` is the beginning of a large frame.
        """
        stream = self.streams.get(number)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection's window is exceeded")
        if stream is not None:
            stream.receive_window -= size
            if stream.receive_window < 0:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a stream's window is exceeded")
        whole = size == stop - start
        if flags & PADDED:
            start, stop = self._unpad(stream, view, start, stop)
        if whole and not flags & END_STREAM and stop - start < PREFIX_BYTES:
            self.lose_patience("DATA of few bytes")
        if stream is not None and stream.length is not None:
            stream.length -= stop - start if whole else size
            if stream.length < 0 or (flags & END_STREAM and stream.length):
                self.consume(None, stop - start)
                self.end_stream(number, frames.PROTOCOL_ERROR, "DATA unlike content-length")
                return
        self._data(stream, number, view, start, stop, flags & END_STREAM)

    def _unpad(
        self, stream: Streams | None, view: memoryview, start: int, stop: int
    ) -> tuple[int, int]:
        """Return where padded DATA begin and end, and take the padding in."""
        if start == stop or view[start] >= stop - start:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "padding larger than its frame")
        padding = view[start]
        self.consume(stream, padding + 1)
        return start + 1, stop - padding

    def _data(  # noqa: PLR0913, PLR0917 - one frame's layout
        self,
        stream: Streams | None,
        number: int,
        view: memoryview,
        start: int,
        stop: int,
        ended: int,
    ) -> None:
        """Take DATA that the windows have been charged for."""
        if stream is None:
            if number > self.last_stream or not number:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA of a stream that never began")
            self.consume(None, stop - start)
            self.data_after_end(number, stop - start, ended)
            return
        if stream.ended:
            self.consume(None, stop - start)
            self.end_stream(number, frames.STREAM_CLOSED, "DATA after the end of a stream")
            return
        reader = stream.reader
        try:
            if reader is None and ended and self.data_received_whole(stream, view, start, stop):
                self.consume(None, stop - start)
                return
            if reader is None:
                reader = stream.reader = self.reader_of(stream)
            before = reader.partial
            reader.feed(view, start, stop)
        except MessageError as error:
            self.consume(None, stop - start)
            self.message_refused(stream, error)
            return
        partial = reader.partial
        if partial is not None and self._rest:
            self._direct = stream
        if before is not None or partial is not None:
            stream.moved_s = self.loop.time()
        self.took(stream, stop - start)
        self.data_ended(stream, ended=bool(ended))

    def end_stream(self, number: int, code: int, reason: str) -> None:
        """Reset a stream for what its peer did on it; all others go on."""
        self.lose_patience(reason)
        self.write(frames.reset(number, code))
        stream = self.streams.get(number)
        if stream is not None:
            self.stream_reset(stream, code, by_peer=False)

    def open_windows(self, values: dict[int, int]) -> bytes:
        """Return the frames that begin this side: settings, and the connection's window."""
        more = CONNECTION_WINDOW - DEFAULT_WINDOW
        self._receive_window += more
        mine = {
            frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            frames.MAX_FRAME_SIZE: MAX_DATA_BYTES,
            frames.MAX_HEADER_LIST_SIZE: HEADER_LIST_BYTES,
        }
        return frames.settings(values | mine) + frames.window_update(0, more)

    def consume(self, stream: Streams | None, count: int) -> None:
        """Give bytes of DATA back to the peer's windows, once they are worth a frame."""
        self._consumed += count
        if self._consumed > CONNECTION_WINDOW // 4 or self._consumed > self._receive_window:
            self._receive_window += self._consumed
            self.write(frames.window_update(0, self._consumed))
            self._consumed = 0
        if stream is not None and not stream.over:
            stream.consumed += count
            if stream.consumed > STREAM_WINDOW // 2:
                stream.receive_window += stream.consumed
                self.write(frames.window_update(stream.number, stream.consumed))
                stream.consumed = 0

    def took(self, stream: Streams, count: int) -> None:
        """Give bytes of messages back, or keep them back for a while."""
        self.consume(stream, count)

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:  # noqa: C901, PLR0912 - one branch per type of frame
        size = len(payload)
        if size > frames.DEFAULT_FRAME_BYTES:
            _check_size(kind, size)
        if kind == WINDOW:
            self._widen(number, payload)
        elif kind == HEADERS:
            self._begin_block(flags, number, payload)
        elif kind == CONTINUATION:
            self._continue_block(flags, number, payload)
        elif kind == PING:
            if size != 8 or number:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING")
            if flags & ACK:
                self.ping_answered(payload)
            else:
                self.lose_patience("PING")
                self.write(frames.frame(PING, ACK, 0, payload))
        elif kind == SETTINGS:
            self._settings(flags, number, payload)
        elif kind == RESET:
            if size != 4:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "RST_STREAM")
            if not number or number > self.last_stream:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM of no stream")
            stream = self.streams.get(number)
            if stream is None or self.is_rapid(stream):
                self.lose_patience("RST_STREAM")
            if stream is None:
                self.reset_after_end(number)
            else:
                self.stream_reset(stream, UINT32.unpack(payload)[0])
        elif kind == GOAWAY:
            if size < 8 or number:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY")
            self.gone_away(*(UINT32.unpack_from(payload, at)[0] for at in (0, 4)))
        elif kind == PRIORITY:
            if size != 5 or not number:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PRIORITY")
            self.lose_patience("PRIORITY")
            if UINT32.unpack_from(payload)[0] & frames.MAX_WINDOW == number:
                self.end_stream(number, frames.PROTOCOL_ERROR, "a stream that depends on itself")
        elif kind == frames.PUSH:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PUSH_PROMISE")
        else:
            self.lose_patience("a frame of an unknown type")

    def _widen(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE")
        more = UINT32.unpack(payload)[0] & frames.MAX_WINDOW
        if not more:
            if number not in self.streams:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.end_stream(number, frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            return
        if more < HEAD_BYTES:
            if self.nudges:
                self.nudges -= 1
            else:
                self.lose_patience("WINDOW_UPDATE of few bytes")
        if number and number not in self.streams:
            if number > self.last_stream:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of no stream")
            return
        if number and self.streams[number].send_window + more > frames.MAX_WINDOW:
            self.end_stream(number, frames.FLOW_CONTROL_ERROR, "a window of more than 2^31")
            return
        self.widen(number, more)

    def _begin_block(self, flags: int, number: int, payload: bytes) -> None:
        padding, start = 0, 0
        if flags & PADDED:
            padding, start = payload[0] if payload else 1, 1
        if flags & PRIORITIZED:
            start += 5
        if start + padding > len(payload):
            raise ConnectionFault(frames.PROTOCOL_ERROR, "padding larger than its frame")
        parent = UINT32.unpack_from(payload, start - 5)[0] if flags & PRIORITIZED else 0
        self._depends_on_itself = bool(number) and parent & frames.MAX_WINDOW == number
        block = bytearray(payload[start : len(payload) - padding])
        if flags & END_HEADERS:
            self._block_received(number, bytes(block), flags & END_STREAM)
        else:
            self._block = (number, flags & END_STREAM, block, 0)

    def _continue_block(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, ended, block, count = self._block
        block += payload
        if len(block) > _BLOCK_BYTES or count >= _CONTINUATIONS:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block too large")
        if flags & END_HEADERS:
            self._block = None
            self._block_received(number, bytes(block), ended)
        else:
            self._block = (number, ended, block, count + 1)

    def _block_received(self, number: int, block: bytes, ended: int) -> None:
        self.head_received(number, self._blocks.read(block), ended)
        if self._depends_on_itself:
            self._depends_on_itself = False
            self.end_stream(number, frames.PROTOCOL_ERROR, "a stream that depends on itself")

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS")
            return
        if len(payload) % 6:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS")
        if self._settings_seen:
            self.lose_patience("SETTINGS", 1 + len(self.streams) / 10 + len(payload) / 60)
        self._settings_seen = True
        for name, value in frames.SETTING.iter_unpack(payload):
            self._set(name, value)
        self.write(frames.frame(SETTINGS, ACK, 0))
        self.send_waiting()

    def _set(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            self.resize_windows(value)
        elif name == frames.MAX_FRAME_SIZE:
            self.limit_frames(value)
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")

    def lose_patience(self, reason: str, cost: float = 1.0) -> None:
        """Count a frame that brings nothing.

        Raises:
            ConnectionFault: There were too many of them.
        """
        self.impatience += cost
        if self.impatience > _PATIENCE:
            now_s = time.monotonic()
            regained = (now_s - self._patience_s) * _PATIENCE_PER_S
            self.impatience = max(0.0, self.impatience - regained)
            self._patience_s = now_s
            if self.impatience > _PATIENCE:
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"too many times {reason}")

    def regain_patience(self) -> None:
        """Count a message sent: a client that gets answers may also withdraw requests."""
        self.impatience = max(0.0, self.impatience - 1.0)

    def is_rapid(self, stream: Streams) -> bool:
        """Return whether a call was withdrawn before it could bring anything."""
        return self.loop.time() - stream.moved_s < _RAPID_S

    def ping_answered(self, payload: bytes) -> None:
        """Note the answer to a PING."""

    def greeted(self) -> None:
        """Note that the peer speaks HTTP/2."""

    def gone_away(self, last_stream: int, code: int) -> None:
        """Note that the peer takes no new streams."""

    def not_http2(self, first: bytes) -> None:
        """Refuse a peer that speaks something else."""
        self.transport.abort()

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection, and say why: what still comes is read, or the peer would not hear."""
        self.write(frames.goaway(self.last_stream, fault.code, str(fault)))
        self._over = True
        self.lost()
        self.loop.call_later(_FAREWELL_S, self.close)

    # ---- time

    def _look(self) -> None:
        """Give up a peer that answers nothing, or reads nothing."""
        if not self._settings_seen:
            self.transport.abort()
            return
        unread = self.transport.get_write_buffer_size() if self.write_paused else 0
        stuck, self._unread = bool(unread) and unread >= self._unread, unread
        if self._heard and not stuck:
            self._heard, self._silent_looks = False, 0
        else:
            self._silent_looks += 1
            if self._silent_looks >= 2:
                self.transport.abort()
                return
        if self._silent_looks and not self.write_paused:
            self.write(frames.frame(PING, 0, 0, bytes(8)))
        self._watch = self.loop.call_later(self._dead_after_s / _LOOKS, self._look)
        self.looked(self.loop.time())


def _check_size(kind: int, size: int) -> None:
    """Bound frames that are taken whole: header blocks may be large, of which most is discarded."""
    most = _BLOCK_BYTES if kind in (HEADERS, CONTINUATION) else frames.DEFAULT_FRAME_BYTES
    if size > most:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {size} bytes")

"""The sending side of an HTTP/2 connection: flow control, and few system calls.

Source: RFC 9113, section 5.2.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from services.kit.h2 import frames
from services.kit.h2.frames import DEFAULT_WINDOW, HEAD, ConnectionFault
from services.kit.h2.messages import PREFIX, PREFIX_BYTES, MessageReader

STREAM_WINDOW: Final = 4 * 2**20

_JOINED_BYTES: Final = 64 * 1024  # up to here one copy is cheaper than several buffers
_MOST_UNREAD_BYTES: Final = 8 * 2**20


class Stream:
    """One exchange on a connection.

    Attributes:
        number: As HTTP/2 counts.
        send_window: Bytes of DATA that the peer takes.
        receive_window: Bytes of DATA that the peer may send.
        consumed: Of what it has sent, bytes not yet given back to its window.
        moved_s: When it began, or last brought part of a message, by the loop's clock.
        outbox: DATA to send, and at last the frame of the trailers as `bytes`; None: never any.
        ended: Whether the peer sends no more.
        length: Of the rest of its DATA, as its `content-length` has it; None: not given.
        reader: Cuts DATA into messages; None: none came yet.
        over: Nothing is sent any more.
    """

    __slots__ = (
        "__weakref__",
        "consumed",
        "ended",
        "length",
        "moved_s",
        "number",
        "outbox",
        "over",
        "reader",
        "receive_window",
        "send_window",
        "sent_all",
    )

    def __init__(self, number: int, send_window: int) -> None:
        self.number = number
        self.send_window = send_window
        self.receive_window = STREAM_WINDOW
        self.consumed = 0
        self.ended = False
        self.length: int | None = None
        self.outbox: deque[memoryview | bytes] | None = None
        self.sent_all: asyncio.Future[None] | None = None
        self.reader: MessageReader | None = None
        self.moved_s = 0.0
        self.over = False


Streams = TypeVar("Streams", bound=Stream)


class SendingSide(Generic[Streams]):
    """One connection's way out.

    Attributes:
        streams: Those that are open, by number.
        transport: Set once connected.
        send_window: Bytes of DATA that the peer takes on all streams.
        peer_stream_window: The window that the peer gives to a new stream.
        write_paused: Whether the peer has to read first.
        drained: Bytes of DATA that waited, and were sent.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        """Make it; the event loop must run."""
        self.loop = asyncio.get_running_loop()
        self.streams: dict[int, Streams] = {}
        self.send_window = DEFAULT_WINDOW
        self.write_paused = False
        self.drained = 0
        self.peer_stream_window = DEFAULT_WINDOW
        self._peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0

    def writable(self) -> None:
        """Note that there may be room to send again."""

    def pause_writing(self) -> None:
        """Send no more DATA until the peer reads."""
        self.write_paused = True

    def resume_writing(self) -> None:
        """Go on."""
        self.write_paused = False
        self.send_waiting()

    def widen(self, number: int, more: int) -> None:
        """Take what the peer adds to a stream's window; 0: to that of the connection.

        Raises:
            ConnectionFault: It is more than HTTP/2 can count.
        """
        if not number:
            self.send_window += more
            if self.send_window > frames.MAX_WINDOW:
                raise _too_wide()
            if self.send_window <= more:  # it was closed
                self.send_waiting()
            return
        stream = self.streams[number]
        stream.send_window += more
        if stream.send_window > frames.MAX_WINDOW:
            raise _too_wide()
        if stream.outbox:
            self.drain(stream)
            self.writable()
        elif stream.send_window <= more:
            self.writable()

    def resize_windows(self, size: int) -> None:
        """Take the window that the peer's settings give to every stream.

        Raises:
            ConnectionFault: It is more than HTTP/2 can count.
        """
        if size > frames.MAX_WINDOW:
            raise _too_wide()
        more, self.peer_stream_window = size - self.peer_stream_window, size
        for stream in self.streams.values():
            stream.send_window += more
            if stream.send_window > frames.MAX_WINDOW:
                raise _too_wide()

    def limit_frames(self, size: int) -> None:
        """Take the size of frames that the peer's settings allow.

        Raises:
            ConnectionFault: HTTP/2 does not allow it.
        """
        if not frames.DEFAULT_FRAME_BYTES <= size <= frames.MAX_FRAME_BYTES:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"frames of {size} bytes")
        self._peer_frame_bytes = size

    def check_it_reads(self) -> None:
        """Bound what waits for a peer that sends requests and does not read.

        Raises:
            ConnectionFault: Too much waits.
        """
        if self.write_paused and self.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "answers are not read")

    def write(self, data: bytes) -> None:
        """Send frames: with all others of this turn of the loop, or at once if they are alone.

        A system call wakes the peer, which takes the processor; it costs more than an answer.
        """
        if len(self.streams) <= 1 and not self._unwritten:
            self.transport.write(data)
            return
        if not self._unwritten:
            self.loop.call_soon(self._write_out)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes > _JOINED_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        if self._unwritten:
            data, self._unwritten, self._unwritten_bytes = b"".join(self._unwritten), [], 0
            if not self.transport.is_closing():
                self.transport.write(data)

    def _write_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._write_out()
        self.transport.writelines(pieces)

    def close(self) -> None:
        """Close once all is sent."""
        self._write_out()
        if not self.transport.is_closing():  # asyncio's TLS, closed twice, cannot be aborted
            self.transport.close()

    def send_message(self, stream: Streams, pieces: Sequence[bytes], size: int) -> None:
        """Send a message of `size` bytes, which nothing copies if it is large."""
        total = size + PREFIX_BYTES
        room = min(self._peer_frame_bytes, stream.send_window, self.send_window)
        if total <= room and not stream.outbox and not self.write_paused:
            stream.send_window -= total
            self.send_window -= total
            head = HEAD.pack(total << 8, 0, stream.number) + PREFIX.pack(0, size)
            if total <= _JOINED_BYTES:
                self.write(b"".join((head, *pieces)))
            else:
                self._write_pieces((head, *pieces))
            return
        self.queue(stream, PREFIX.pack(0, size), *pieces)

    def queue(self, stream: Streams, *pieces: bytes) -> None:
        """Send DATA as far as the windows let it, and the rest when they do."""
        if stream.outbox is None:
            stream.outbox = deque()
        stream.outbox.extend(memoryview(piece) for piece in pieces if piece)
        self.drain(stream)

    def drain(self, stream: Streams) -> None:
        """Send what waits, as far as the windows let it."""
        outbox, out = stream.outbox, list[bytes | memoryview]()
        while outbox and not self.write_paused:
            piece = outbox[0]
            if isinstance(piece, bytes):  # the trailers
                out.append(outbox.popleft())
                self.finish(stream)
                break
            room = min(stream.send_window, self.send_window, self._peer_frame_bytes)
            if room <= 0:
                break
            taken = list[bytes | memoryview]()
            left = room
            while left and outbox and isinstance(piece := outbox[0], memoryview):
                if len(piece) <= left:
                    outbox.popleft()
                    taken.append(piece)
                    left -= len(piece)
                else:
                    taken.append(piece[:left])
                    outbox[0] = piece[left:]
                    left = 0
            sent = room - left
            stream.send_window -= sent
            self.send_window -= sent
            self.drained += sent
            out.append(HEAD.pack(sent << 8, 0, stream.number))
            out += taken
        if out:
            self._write_pieces(out)
        if not outbox and stream.sent_all is not None and not stream.sent_all.done():
            stream.sent_all.set_result(None)

    def finish(self, stream: Streams) -> None:
        """Forget a stream on which all is said."""
        stream.over = True
        self.streams.pop(stream.number, None)

    def send_waiting(self) -> None:
        """Send what waits on any stream, as far as the windows let it."""
        for stream in tuple(self.streams.values()):
            if stream.outbox:
                self.drain(stream)
        self.writable()


def _too_wide() -> ConnectionFault:
    return ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window of more than 2^31")

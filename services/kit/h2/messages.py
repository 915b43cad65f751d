"""Messages of gRPC within a stream's DATA: a prefix of 5 bytes, then the message.

Sources: PROTOCOL-HTTP2.md, "Length-Prefixed-Message"; Python/C API, PyByteArray_FromStringAndSize.
"""

import ctypes
import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

PREFIX: Final = Struct(">BI")
"""Flag of a compressed message, and the message's length, bytes."""
PREFIX_BYTES: Final = PREFIX.size

_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
ENCODINGS: Final = frozenset(_WINDOW_BITS)
_FREE_BYTES: Final = 2**20
_MOST_RATIO: Final = 100
"""Growth of a message beyond the first MiB: images grow some times, bombs a thousand times."""

Take = Callable[[bytes | bytearray], None]


class MessageError(Exception):
    """A message that is not taken.

    Attributes:
        too_large: It exceeds the limit; else it is damaged.
    """

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


_new_bytearray: Final = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_new_bytearray.restype = ctypes.py_object


class Partial:
    """A message that comes in several pieces, gathered where it stays.

    Attributes:
        data: The whole message, of which `received` bytes are there.
        view: The same, to write into.
    """

    __slots__ = ("compressed", "data", "received", "size", "view")

    def __init__(self, size: int, *, compressed: bool) -> None:
        self.size = size
        self.compressed = compressed
        # Not bytearray(size), which writes zeros: who announces a gigabyte would make us take one.
        self.data: bytearray = _new_bytearray(None, size)
        self.view = memoryview(self.data)
        self.received = 0


class MessageReader:
    """Cuts the DATA of one stream into messages.

    Attributes:
        partial: The message that comes in pieces; None: none does.
    """

    __slots__ = ("_most_bytes", "_prefix", "_reserve", "_take", "_take_compressed", "partial")

    def __init__(
        self,
        take: Take,
        most_bytes: int,
        reserve: Callable[[int], None] | None = None,
        take_compressed: Take | None = None,
    ) -> None:
        """Read messages.

        Args:
            take: Called with each message.
            most_bytes: Maximum size of a message.
            reserve: Takes room for bytes of a message in pieces, as they come, or raises
                MessageError; None: always can.
            take_compressed: Called with each compressed message, as it is; None: there may be none.
        """
        self._take = take
        self._most_bytes = most_bytes
        self._reserve = reserve
        self._prefix = b""
        self._take_compressed = take_compressed
        self.partial: Partial | None = None

    @property
    def whole(self) -> bool:
        """True if no message is incomplete."""
        return self.partial is None and not self._prefix

    def feed(self, view: memoryview, start: int, stop: int) -> None:
        """Take view[start:stop], and hand over the messages that end in it.

        Raises:
            MessageError: A message is too large, or damaged.
        """
        partial = self.partial
        if partial is not None:
            count = min(stop - start, partial.size - partial.received)
            self.take_room(count)
            end = partial.received + count
            partial.view[partial.received : end] = view[start : start + count]
            partial.received = end
            start += count
            self.finish()
        elif self._prefix:
            needed = min(PREFIX_BYTES - len(self._prefix), stop - start)
            self._prefix += bytes(view[start : start + needed])
            start += needed
            if len(self._prefix) < PREFIX_BYTES:
                return
            compressed, size = PREFIX.unpack(self._prefix)
            self._prefix = b""
            start = self._begin(view, start, stop, size, compressed)
        while stop - start >= PREFIX_BYTES:
            compressed, size = PREFIX.unpack_from(view, start)
            start += PREFIX_BYTES
            if compressed or size > self._most_bytes or size > stop - start:
                start = self._begin(view, start, stop, size, compressed)
            else:  # the usual case
                self._take(bytes(view[start : start + size]))
                start += size
        if start < stop:
            self._prefix = bytes(view[start:stop])

    def take_room(self, count: int) -> None:
        """Take room for bytes of a message in pieces.

        Raises:
            MessageError: There is none.
        """
        if self._reserve is not None:
            self._reserve(count)

    def finish(self) -> None:
        """Hand over the message in pieces if it is all there."""
        partial = self.partial
        if partial is not None and partial.received == partial.size:
            self.partial = None
            partial.view.release()
            self._hand_over(partial.data, partial.compressed)

    def _begin(self, view: memoryview, start: int, stop: int, size: int, compressed: int) -> int:
        if size > self._most_bytes:
            raise MessageError(
                f"Received message larger than max ({size} vs. {self._most_bytes})", too_large=True
            )
        if compressed > 1 or (compressed and self._take_compressed is None):
            raise MessageError("a compressed message without a known grpc-encoding")
        if stop - start >= size:
            self._hand_over(bytes(view[start : start + size]), bool(compressed))
            return start + size
        self.take_room(stop - start)
        try:
            self.partial = partial = Partial(size, compressed=bool(compressed))
        except MemoryError:
            raise MessageError(f"no memory for a message of {size} bytes", too_large=True) from None
        partial.received = stop - start
        partial.view[: partial.received] = view[start:stop]
        return stop

    def _hand_over(self, data: bytes | bytearray, compressed: bool) -> None:
        take = self._take_compressed if compressed else self._take
        if take is not None:
            take(data)


class Compressed:
    """A message as it came, decompressed a piece at a time once its handler needs it.

    Attributes:
        data: The message as it came.
        found: What has been decompressed.
        done: Whether that is all.
    """

    def __init__(self, data: bytes | bytearray, encoding: str, most_bytes: int) -> None:
        """Take a message of `encoding` ("gzip", "deflate") that may grow to `most_bytes`."""
        self.data, self._encoding, self._most_bytes = data, encoding, most_bytes
        self.found, self.done = bytearray(), not data
        self._most_grown = max(_FREE_BYTES, _MOST_RATIO * len(data))
        self._reader = zlib.decompressobj(_WINDOW_BITS[encoding])
        self._left: bytes | bytearray = data

    def __len__(self) -> int:
        """Return the size that came."""
        return len(self.data)

    def go_on(self, count: int) -> None:
        """Decompress up to `count` bytes more; other threads run meanwhile.

        Raises:
            MessageError: The message is damaged, or too large.
        """
        try:
            piece = self._reader.decompress(self._left, count)
        except zlib.error as error:
            raise MessageError(f"a message that is not {self._encoding}: {error}") from error
        self._left, self.done = self._reader.unconsumed_tail, self._reader.eof
        self.found += piece
        if len(self.found) > self._most_bytes:
            raise MessageError(
                f"Decompressed message larger than max ({self._most_bytes})", too_large=True
            )
        if len(self.found) > self._most_grown:
            raise MessageError(
                f"Decompressed message more than {_MOST_RATIO} times as large", too_large=True
            )
        if not (piece or self.done):
            raise MessageError(f"a message of {self._encoding} that ends early")


def compress(data: bytes, encoding: str) -> bytes:
    """Return a message compressed by "gzip" or "deflate"."""
    writer = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return writer.compress(data) + writer.flush()

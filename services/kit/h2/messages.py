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

    __slots__ = ("_most_bytes", "_prefix", "_reserve", "_take", "encoding", "partial")

    def __init__(
        self,
        take: Take,
        most_bytes: int,
        encoding: str = "identity",
        reserve: Callable[[int], bool] | None = None,
    ) -> None:
        """Read messages.

        Args:
            take: Called with each message.
            most_bytes: Maximum size of a message, also after decompression.
            encoding: Of compressed messages: "gzip" or "deflate"; else there may be none.
            reserve: Takes room for bytes of a message in pieces, as they come; None: always can.
        """
        self._take = take
        self._most_bytes = most_bytes
        self._reserve = reserve
        self._prefix = b""
        self.encoding = encoding
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
        if self._reserve is not None and not self._reserve(count):
            raise MessageError("the server receives as much as it may at a time", too_large=True)

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
        if compressed > 1 or (compressed and self.encoding not in _WINDOW_BITS):
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
        self._take(self._decompressed(data) if compressed else data)

    def _decompressed(self, data: bytes | bytearray) -> bytes:
        reader = zlib.decompressobj(_WINDOW_BITS[self.encoding])
        try:
            found = reader.decompress(data, self._most_bytes + 1)
        except zlib.error as error:
            raise MessageError(f"a message that is not {self.encoding}: {error}") from error
        if len(found) > self._most_bytes:
            raise MessageError(
                f"Decompressed message larger than max ({self._most_bytes})", too_large=True
            )
        return found


def compress(data: bytes, encoding: str) -> bytes:
    """Return a message compressed by "gzip" or "deflate"."""
    writer = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return writer.compress(data) + writer.flush()

"""Frames: their numbers, their layout, and what ends a connection. Source: RFC 9113, 4, 6, 7."""

from struct import Struct
from typing import Final

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEAD: Final = Struct(">IBI")
"""Length and type in one word, flags, stream."""
HEAD_BYTES: Final = HEAD.size
UINT32: Final = Struct(">I")
SETTING: Final = Struct(">HI")

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384
MAX_FRAME_BYTES: Final = 2**24 - 1

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11


class ConnectionFault(Exception):
    """A peer's violation of the protocol, which ends its connection.

    Attributes:
        code: An error code of RFC 9113, 7.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(SETTING.pack(name, value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream: int, more: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW, 0, stream, UINT32.pack(more))


def reset(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RESET, 0, stream, UINT32.pack(code))


def goaway(last_stream: int, code: int, reason: str = "") -> bytes:
    """Return a GOAWAY frame."""
    payload = UINT32.pack(last_stream) + UINT32.pack(code) + reason.encode()
    return frame(GOAWAY, 0, 0, payload)

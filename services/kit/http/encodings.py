"""Content-Encoding: requests are decompressed in pieces of bounded size, answers compressed."""

import zlib
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from services.kit.errors import InvalidArgument
from services.kit.http.statuses import UNKNOWN_ENCODING

_FIELD: Final = "Content-Encoding"
_PIECE: Final = 2**16
_GZIP, _ZLIB, _RAW = 31, 15, -15  # window bits of zlib
_DEFLATED: Final = 8  # low bits of a zlib stream's first byte

_COMPRESSED: Final = 1024
"""Answers of fewer bytes are not worth it."""
_CODINGS: Final = {coding.value: coding for coding in web.ContentCoding}


def compress(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Compress a whole answer that is large, where the client accepts that.

    Binary tensors, which get little smaller, where it accepts nothing else: many clients accept by
    default whatever they know.
    """
    if not isinstance(response, web.Response) or (response.content_length or 0) < _COMPRESSED:
        return
    response.headers["Vary"] = "Accept-Encoding"
    accepted = [
        name.strip().lower()
        for name, _, rest in (
            each.partition(";") for each in request.headers.get("Accept-Encoding", "").split(",")
        )
        if rest.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    ]
    found = next((_CODINGS[name] for name in ("gzip", "deflate") if name in accepted), None)
    if found and (len(accepted) == 1 or response.content_type == "application/json"):
        response.enable_compression(found)


class Decompressor:
    """Decompresses a body.

    Args:
        encoding: Its Content-Encoding: "", "identity", "gzip" or "deflate" (zlib's, or raw).

    Raises:
        InvalidArgument: It is another.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            problem = f"gzip and deflate are understood, got {encoding[:64]!r}"
            raise InvalidArgument.at(_FIELD, problem, reason=UNKNOWN_ENCODING)
        self._reader: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of the body bring, in pieces.

        Raises:
            InvalidArgument: They are damaged.
        """
        if self._encoding in ("", "identity"):
            yield data
            return
        while data:
            yield self._next(data)
            data = self._rest

    def end(self) -> None:
        """Check that the body is whole.

        Raises:
            InvalidArgument: It is cut short.
        """
        if self._reader is not None and not self._reader.eof:
            raise InvalidArgument.at(_FIELD, f"the body ends within its {self._encoding} data")

    def _next(self, data: bytes) -> bytes:
        if self._reader is None:
            zlib_s = data[0] & 0x0F == _DEFLATED
            deflate = _ZLIB if zlib_s else _RAW
            self._reader = zlib.decompressobj(deflate if self._encoding == "deflate" else _GZIP)
        try:
            found = self._reader.decompress(data, _PIECE)
        except zlib.error as error:
            raise InvalidArgument.at(_FIELD, f"the body is not {self._encoding}: {error}") from None
        if self._reader.unused_data:
            raise InvalidArgument.at(_FIELD, f"bytes follow the body's {self._encoding} data")
        self._rest = self._reader.unconsumed_tail
        return found

"""Downloads a file of a known SHA-256; an interrupted transfer resumes.

Over HTTP by Range (RFC 9110 section 14), from this machine's own files, or from any store that
fsspec reaches (extra `uri`).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import httpx

from services.kit import proxies
from services.kit.errors import (
    FailedPrecondition,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from services.kit.package_data import require_sha256
from services.kit.segment import whole_number

_TIMEOUT_S: Final = 30.0
_MOST_BYTES: Final = 2**63 - 1
_ATTEMPTS: Final = 3
_CHUNK_BYTES: Final = 1 << 20

Progress = Callable[[int], None]
"""Receives the number of bytes that came since the last call."""

Room = Callable[[int], None]
"""Receives the length that a file has, or has come to, in bytes; raises where that is too long."""


class Interrupted(Exception):
    """A transfer ended early; the next attempt resumes it. The message says why."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes that a source sends.

    Attributes:
        start: Position of its first byte in the file.
        size_bytes: Length of the whole file; None: not announced.
        chunks: The bytes.
    """

    start: int
    size_bytes: int | None
    chunks: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file comes from.

    Attributes:
        uri: Its URI: of a web server, of this machine or a folder that is mounted there (`file:`),
            or of a store that fsspec reaches, with credentials that its library finds.
        http: Client for web servers.
    """

    uri: str
    http: httpx.Client

    def read(self, start: int) -> AbstractContextManager[Stream]:
        """Open the file at a position, or at its beginning if the source has no ranges.

        Raises:
            Interrupted: It ended early, here or while the chunks are read.
            Unavailable: There is no such file, or it is refused.
        """
        match urlsplit(self.uri).scheme:
            case "http" | "https":
                return _from_web(self.uri, self.http, start)
            case "file":
                return _from_disk(self.uri, start)
            case _:
                return _from_store(self.uri, start)


def client() -> httpx.Client:
    """Return a client for `Source`; proxies apply, and credentials of the file $NETRC.

    Raises:
        FailedPrecondition: A proxy that the environment names cannot be used.
    """
    netrc = os.environ.get("NETRC")
    try:
        return httpx.Client(
            auth=httpx.NetRCAuth(netrc) if netrc else None,
            follow_redirects=True,
            timeout=_TIMEOUT_S,
            event_hooks={"request": [_refuse_other_schemes]},
            mounts=proxies.LOOPBACK_DIRECT,
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # SOCKS, for example
        raise proxies.unusable(error) from error


def _refuse_other_schemes(request: httpx.Request) -> None:
    """Reject redirects to schemes other than HTTP and HTTPS."""
    if request.url.scheme not in ("http", "https"):
        raise FailedPrecondition(f"redirected to {request.url.scheme}:, which is not followed")


@contextmanager
def _from_web(uri: str, http: httpx.Client, start: int) -> Iterator[Stream]:
    """Request the rest of the file; a server that knows no ranges sends all of it."""
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with http.stream("GET", uri, headers=headers) as answer:
            if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                yield Stream(start, start, iter(()))  # it is here; its digest is compared
                return
            if answer.is_error:
                said = f"{answer.status_code} {answer.reason_phrase}{proxies.note(uri)}"
                raise Unavailable(f"{uri}: {said}")
            begin = start if answer.status_code == httpx.codes.PARTIAL_CONTENT else 0
            length = whole_number(answer.headers.get("Content-Length", ""), _MOST_BYTES)
            size = None if length is None else begin + length
            yield Stream(begin, size, answer.iter_raw())
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        raise Interrupted(f"{why}{proxies.note(uri)}") from error
    except httpx.HTTPError as error:  # too many redirects
        raise Unavailable(f"{uri}: {error}") from error


@contextmanager
def _from_disk(uri: str, start: int) -> Iterator[Stream]:
    try:
        with Path(urlsplit(uri).path).open("rb") as file:
            yield Stream(start, os.fstat(file.fileno()).st_size, _chunks(file, start))
    except OSError as error:
        raise Unavailable(f"{uri}: {error.strerror}") from error


@contextmanager
def _from_store(uri: str, start: int) -> Iterator[Stream]:
    try:
        import fsspec  # noqa: PLC0415 - of the extra `uri`

        store, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise FailedPrecondition(f"{uri}: {error}; pip install 'cinquefoil[uri]'") from error
    try:
        with store.open(path, "rb") as file:
            yield Stream(start, file.size, _chunks(file, start))
    except ServiceError:  # of the reader
        raise
    except FileNotFoundError as error:
        raise Unavailable(f"{uri}: no such file") from error
    except PermissionError as error:
        raise Unavailable(f"{uri}: not permitted: {error}") from error
    except Exception as error:  # errors of stores' libraries have no class in common
        raise Interrupted(f"{type(error).__name__}: {error}") from error


def _chunks(file: Any, start: int) -> Iterator[bytes]:
    file.seek(start)
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def complete(  # noqa: PLR0913 - what is known of a file, and who hears of it
    source: Source,
    part: Path,
    sha256: str,
    room: Room,
    progress: Progress,
    *,
    size_bytes: int | None = None,
) -> None:
    """Download the rest of a partial file and verify its SHA-256.

    Args:
        source: Where it comes from.
        part: The partial file, which need not exist; removed if its content is wrong.
        sha256: Of the whole, hexadecimal.
        room: Called before bytes are written: with the announced length, or with each new one.
        progress: Called as bytes come.
        size_bytes: Length of the whole; None: unknown.

    Raises:
        FailedPrecondition: The file's SHA-256 differs, or `room` refuses its length.
        ResourceExhausted: The disk is full.
        Unavailable: The source does not answer, or refuses.
    """
    part.parent.mkdir(parents=True, exist_ok=True)
    reported = 0

    def here(count: int) -> None:
        nonlocal reported
        progress(count - reported)
        reported = count

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with part.open("ab") as out:
                if out.tell() != size_bytes:
                    _receive(source, out, room, here)
            break
        except Interrupted as error:
            if attempt == _ATTEMPTS:
                of = "" if size_bytes is None else f" of {size_bytes}"
                raise Unavailable(
                    f"{source.uri}: {error}; the next fetch goes on from {part.stat().st_size}{of} "
                    "bytes"
                ) from error
    try:
        require_sha256(part, sha256)
    except FailedPrecondition as error:
        part.unlink()
        raise FailedPrecondition(
            f"{source.uri} is not what it was: {error}; nothing of it was kept"
        ) from error


def _receive(source: Source, out: BinaryIO, room: Room, here: Progress) -> None:
    with source.read(out.tell()) as stream:
        have, size = stream.start, stream.size_bytes
        if have != out.tell():  # all of it comes again
            out.truncate(have)
        room(have if size is None else size)
        here(have)
        for chunk in stream.chunks:
            have += len(chunk)
            if size is None:
                room(have)
            elif have > size:
                raise Unavailable(f"{source.uri} sends more than the {size} bytes it announced")
            try:
                out.write(chunk)
            except OSError as error:
                raise ResourceExhausted(f"{out.name}: {error.strerror}") from error
            here(have)

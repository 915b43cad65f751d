"""State on disk: JSON files that are replaced as a whole, and whose damage is noticed.

A file is one JSON object whose first member is the checksum of all bytes after it, so that a flip,
a cut or a page of zeros is found before a figure is read. Files from before there were checksums
begin with their version, and are still read; readers from then skip the checksum.

A damaged file that its owner can do without is set aside for inspection and started again. Any
other stops its service with a message that says what to do.
"""

import errno
import json
import re
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from services.kit.errors import FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs
from services.kit.whole_file import replacing, sync

_log = logs.get("state")

_SEALED: Final = re.compile(rb'\{"crc32": "([0-9a-f]{8})", (".*)', re.DOTALL)
_UNSEALED: Final = re.compile(rb'\{\s*"version"\s*:')
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED: Final = ".damaged-"

T = TypeVar("T")


class Damaged(FailedPrecondition):
    """A file of state is not as it was written."""

    def __init__(self, path: Path, why: object, remedy: str = "remove it to start over") -> None:
        super().__init__(f"{path} is damaged ({why}); {remedy}", reason="STATE_DAMAGED")


def write_json(path: Path, data: dict[str, Any], *, durable: bool = True) -> None:
    """Replace a file as a whole.

    Args:
        path: The file; its folder is made where it is missing.
        data: JSON values; not empty, and `version` among them.
        durable: Wait until the disk has it, so that it outlives the machine's power too.

    Raises:
        Unavailable: The disk does not take it; the file is as it was. Its reason is DISK_FULL
            where there is no room, else STATE_NOT_WRITABLE.
    """
    body = json.dumps(data).encode()[1:]
    try:
        with replacing(path, durable=durable) as draft:
            draft.write_bytes(b'{"crc32": "%08x", ' % zlib.crc32(body) + body)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> Unavailable:
    """Return the error of a file that cannot be written."""
    reason = "DISK_FULL" if error.errno in _FULL else "STATE_NOT_WRITABLE"
    return Unavailable(f"cannot write {path}: {error.strerror}", reason=reason)


def remove(path: Path) -> None:
    """Remove a file durably; a missing one is not an error.

    Raises:
        Unavailable: The disk does not let it go.
    """
    try:
        if path.exists():
            path.unlink()
            sync(path.parent)
    except OSError as error:
        raise not_written(path, error) from error


def decoded(path: Path, content: bytes, *, version: int) -> dict[str, Any]:
    """Return the JSON values of a file's content.

    Raises:
        Damaged: It is not as it was written, or of another version.
    """
    try:
        data = json.loads(_checked(content))
    except ValueError as error:
        raise Damaged(path, error) from error
    if not isinstance(data, dict) or data.get("version") != version:
        raise Damaged(path, f"it is not of version {version}")
    data.pop("crc32", None)
    return data


def read_parsed(path: Path, parse: Callable[[dict[str, Any]], T], *, version: int) -> T | None:
    """Return `parse` of the values that `write_json` wrote, or None where there is no file.

    Raises:
        Damaged: It is not as it was written, of another version, or `parse` cannot read it.
        Unavailable: It cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}") from error
    data = decoded(path, content, version=version)
    try:
        return parse(data)
    except (LookupError, TypeError, ValueError, AttributeError, ServiceError) as error:
        raise Damaged(path, error) from error


def read_disposable(path: Path, parse: Callable[[dict[str, Any]], T], *, version: int) -> T | None:
    """Return `parse` of a file's JSON values; None: the file is missing or was set aside.

    A damaged file is set aside.

    Raises:
        Unavailable: It cannot be read, or not be set aside.
    """
    try:
        return read_parsed(path, parse, version=version)
    except Damaged as damage:
        set_aside(path, damage.message)
        return None


def set_aside(path: Path, why: str) -> Path:
    """Move a damaged file to `<name>.damaged-<time>`, and return its new path.

    Raises:
        Unavailable: The disk does not let it be moved.
    """
    aside = path.with_name(f"{path.name}{_DAMAGED}{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    try:
        path.rename(aside)
    except OSError as error:
        raise not_written(aside, error) from error
    _log.warning("damaged file set aside, and begun again", file=str(aside), why=why)
    return aside


def damaged_files(folder: Path) -> tuple[Path, ...]:
    """Return the files below a folder that were set aside. Blocks."""
    return tuple(sorted(folder.rglob(f"*{_DAMAGED}*")))


def _checked(content: bytes) -> bytes:
    """Return the JSON of a file's content.

    Raises:
        ValueError: It is not as it was written.
    """
    sealed = _SEALED.fullmatch(content)
    if sealed:
        if int(sealed[1], 16) != zlib.crc32(sealed[2]):
            raise ValueError("its checksum is another")
    elif not _UNSEALED.match(content):
        raise ValueError("it does not begin as such a file does")
    return content

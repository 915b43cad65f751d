"""A lock that the system gives back when its holder dies, with a note that names its holder."""

import fcntl
import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from services.kit.errors import FailedPrecondition

_NOTE_BYTES: Final = 4096


class LockFile:
    """A lock file; a context manager that lets go of it.

    Args:
        path: The file; its folder is made where it is missing.
        setting: The setting that says where it lies, for the message of an error.

    Raises:
        FailedPrecondition: It cannot be written.
    """

    def __init__(self, path: Path, setting: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FailedPrecondition.at(
                setting, f"{path} cannot be written: {error.strerror}", reason="STATE_NOT_WRITABLE"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def take(self) -> bool:
        """Take the lock and note who has it; return whether it was free."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        note_holder(self._descriptor)
        return True

    def holder(self) -> str:
        """Return who holds the lock, for a person: process, host, and since when."""
        try:
            note = json.loads(os.pread(self._descriptor, _NOTE_BYTES, 0))
            return f"process {note['pid']} on {note['host']}, since {note['since']}"
        except (OSError, ValueError, LookupError, TypeError):
            return "a process that did not note who it is"


def note_holder(descriptor: int) -> None:
    """Note in an open lock file that this process has the lock."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    note = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with suppress(OSError):  # the note is for people; the lock holds without it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)

"""A lock that the system releases when its holder dies, with a note that names the holder."""

import fcntl
import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from services.kit.errors import FailedPrecondition

_NOTE_BYTES: Final = 4096


class LockFile:
    """A lock file; a context manager that releases it.

    Attributes:
        ended: Host and process that had the lock before, as it noted, and has let go of it; "": the
            file is new.

    Args:
        path: The file; its folder is made where it is missing.
        setting: The setting that says where it lies, for the message of an error.
    """

    def __init__(self, path: Path, setting: str) -> None:
        self._path = path
        self._setting = setting
        self._descriptor = -1
        self.ended = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> bool:
        """Take the lock and note its holder; return whether it is held.

        A file that was replaced meanwhile is another lock.

        Raises:
            FailedPrecondition: It cannot be written.
        """
        if self._descriptor >= 0 and self._is_the_file(self._descriptor):
            return True
        self.release()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FailedPrecondition.at(
                self._setting,
                f"{self._path} cannot be written: {error.strerror}",
                reason="STATE_NOT_WRITABLE",
            ) from error
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_the_file(descriptor):
                self._descriptor, self.ended = descriptor, _noted(descriptor)
                _note_holder(descriptor)
                return True
        os.close(descriptor)
        return False

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def break_open(self) -> None:
        """Make the next `take` replace the file, which invalidates the holder's lock."""
        self._path.unlink(missing_ok=True)

    def holder(self) -> str:
        """Return a description of the lock's holder: process, host, and since when."""
        try:
            note = self._note()
            return f"process {note['pid']} on {note['host']}, since {note['since']}"
        except (OSError, ValueError, LookupError, TypeError):
            return "a process that did not note who it is"

    def holder_pid(self) -> int:
        """Return the id of the process that holds the lock, on this host.

        Raises:
            OSError, ValueError, LookupError, TypeError: It did not note who it is.
        """
        return int(self._note()["pid"])

    def _note(self) -> Any:
        return json.loads(self._path.read_bytes())

    def _is_the_file(self, descriptor: int) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        return False


def _noted(descriptor: int) -> str:
    """Return the host and process that an open lock file names; "": none."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        note = json.loads(os.pread(descriptor, _NOTE_BYTES, 0))
        return f"{note['host']}:{note['pid']}"
    return ""


def _note_holder(descriptor: int) -> None:
    """Note in an open lock file that this process has the lock."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    note = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    with suppress(OSError):  # the note is for people; the lock holds without it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)

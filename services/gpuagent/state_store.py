"""Where simulated hardware keeps its state."""

import os
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import TypeAdapter

from services.kit.state_file import Damaged, decoded, write_json

VERSION: Final = 1

Kept = TypeVar("Kept")
_Stamp = tuple[int, int, int]


class Store(Generic[Kept]):
    """One value of one GPU: in memory, or in a JSON file that is replaced as a whole.

    One process writes; any number may read, and see each value either before or after a change.

    Args:
        path: The file; None: the value ends with the process.
        kind: The dataclass of the value.
    """

    def __init__(self, path: Path | None, kind: type[Kept]) -> None:
        self._path = path
        self._json = TypeAdapter(kind)
        self._value: Kept | None = None
        self._stamp: _Stamp | None = None

    def load(self) -> Kept | None:
        """Return the value, None before the first; a file is read again only once it is replaced.

        Raises:
            Damaged: The file does not hold such a value.
        """
        if self._path is None:
            return self._value
        try:
            with self._path.open("rb") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                if stamp != self._stamp:
                    self._value = self._parsed(self._path, file.read())
                    self._stamp = stamp
        except FileNotFoundError:
            return None
        return self._value

    def _parsed(self, path: Path, content: bytes) -> Kept:
        data = decoded(path, content, version=VERSION)
        try:
            return self._json.validate_python(data)
        except ValueError as error:
            raise Damaged(path, error) from error

    def save(self, value: Kept) -> None:
        """Keep a new value; the disk has it when this returns.

        Raises:
            Unavailable: The disk does not take it; the value is as before.
        """
        if self._path is not None:
            fields = self._json.dump_python(value, mode="json")
            write_json(self._path, {"version": VERSION, **fields})
            self._stamp = _stamp(self._path.stat())
        self._value = value


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size

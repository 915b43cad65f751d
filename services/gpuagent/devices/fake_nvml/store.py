"""Where simulated hardware keeps its state."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from services.kit.errors import FailedPrecondition

_Stamp = tuple[int, int, int]


class Value(Protocol):
    """What can be kept: an immutable value that knows its JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ...

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return what `to_json` gave; raise KeyError, TypeError or ValueError for all else."""
        ...


Kept = TypeVar("Kept", bound=Value)


class Store(Protocol[Kept]):
    """Keeps one value of one GPU."""

    def load(self) -> Kept | None:
        """Return the latest value, or None before the first."""
        ...

    def save(self, value: Kept) -> None:
        """Keep a new value; it is kept when this returns."""
        ...


class MemoryStore(Generic[Kept]):
    """Hardware that is forgotten with the process."""

    def __init__(self) -> None:
        self._value: Kept | None = None

    def load(self) -> Kept | None:
        """Return what was saved last."""
        return self._value

    def save(self, value: Kept) -> None:
        """Keep it in memory."""
        self._value = value


class FileStore(Generic[Kept]):
    """Hardware that outlives the process: one JSON file, replaced as a whole.

    One process writes; any number may read, and see each value either before or after a change.

    Args:
        path: The file.
        kind: What is kept in it.
    """

    def __init__(self, path: Path, kind: type[Kept]) -> None:
        self._path = path
        self._kind = kind
        self._value: Kept | None = None
        self._stamp: _Stamp | None = None

    def load(self) -> Kept | None:
        """Return the file's value; the file is read again only where it was replaced.

        Raises:
            FailedPrecondition: The file is not such a value.
        """
        try:
            with self._path.open(encoding="utf-8") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                if stamp != self._stamp:
                    self._value, self._stamp = self._kind.from_json(json.load(file)), stamp
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise FailedPrecondition(
                f"{self._path} is no state of a simulated GPU ({error}); remove it to start anew"
            ) from error
        return self._value

    def save(self, value: Kept) -> None:
        """Write beside the file, then replace it, so that no crash leaves half a value."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(value.to_json(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
            stamp = _stamp(os.fstat(file.fileno()))
        fresh.replace(self._path)
        _sync_folder(self._path.parent)
        self._value, self._stamp = value, stamp


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _sync_folder(folder: Path) -> None:
    """Make the replacement itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

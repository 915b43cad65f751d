"""Where simulated hardware keeps its state."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from services.gpuagent.simulator.state import GpuState
from services.kit.errors import FailedPrecondition

_Stamp = tuple[int, int, int]


class Store(Protocol):
    """Keeps the state of one GPU."""

    def load(self) -> GpuState | None:
        """Return the latest state, or None before the first boot."""
        ...

    def save(self, state: GpuState) -> None:
        """Keep a new state; it is kept when this returns."""
        ...


class MemoryStore:
    """Hardware that is forgotten with the process."""

    def __init__(self) -> None:
        self._state: GpuState | None = None

    def load(self) -> GpuState | None:
        """Return what was saved last."""
        return self._state

    def save(self, state: GpuState) -> None:
        """Keep it in memory."""
        self._state = state


class FileStore:
    """Hardware that outlives the process: one JSON file, replaced as a whole.

    One process writes; any number may read, and see each state either before or after a change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: GpuState | None = None
        self._stamp: _Stamp | None = None

    def load(self) -> GpuState | None:
        """Return the file's state; the file is read again only where it was replaced.

        Raises:
            FailedPrecondition: The file is not such a state.
        """
        try:
            with self._path.open(encoding="utf-8") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                if stamp != self._stamp:
                    self._state, self._stamp = GpuState.from_json(json.load(file)), stamp
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            raise FailedPrecondition(
                f"{self._path} is no state of a simulated GPU ({error}); remove it to start anew"
            ) from error
        return self._state

    def save(self, state: GpuState) -> None:
        """Write beside the file, then replace it, so that no crash leaves half a state."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(state.to_json(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
            stamp = _stamp(os.fstat(file.fileno()))
        fresh.replace(self._path)
        _sync_folder(self._path.parent)
        self._state, self._stamp = state, stamp


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _sync_folder(folder: Path) -> None:
    """Make the replacement itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

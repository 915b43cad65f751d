"""Files that survive a crash in the middle of writing them."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.kit.errors import FailedPrecondition


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """Replace a file as a whole.

    Args:
        path: The file; its folder is made where it is missing.
        data: JSON values.
        durable: Wait until the disk has it, so that it outlives the machine's power too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(data, file)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    draft.replace(path)
    if durable:
        _sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file, so that it stays away over a crash; one that is not there is no error."""
    if path.exists():
        path.unlink()
        _sync_folder(path.parent)


def read_json(path: Path, *, version: int) -> dict[str, Any] | None:
    """Return what `write_json` wrote, or None where there is no file.

    Raises:
        FailedPrecondition: It is not such a file, or of another version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FailedPrecondition(f"{path} is damaged ({error}); remove it to start over") from error
    if not isinstance(data, dict) or data.get("version") != version:
        raise FailedPrecondition(f"{path} is not of version {version}; remove it to start over")
    return data


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file while the block runs; the system lets go of it when the process dies.

    Raises:
        FailedPrecondition: Another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FailedPrecondition(
                f"another agent runs on this node: it holds {path}", reason="AGENT_RUNNING"
            ) from error
        yield


def _sync_folder(folder: Path) -> None:
    """Make what was renamed or removed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

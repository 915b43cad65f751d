"""Files that are replaced as a whole: a reader sees all of the new one, or the one before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, durable: bool = False) -> Iterator[Path]:
    """Yield an empty draft beside a file, which takes the file's place where the block succeeds.

    Otherwise the file is as it was, and the draft is removed.

    Args:
        path: The file; its folder is made where it is missing.
        mode: Permissions of the new file, less the umask; the draft has no wider ones at any time.
        durable: Wait until the disk has it, so that it outlives the machine's power too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.unlink(missing_ok=True)  # an earlier one may have wider permissions
        draft.touch(mode, exist_ok=False)
        yield draft
        if durable:
            sync(draft)
        draft.replace(path)
        if durable:
            sync(path.parent)
    except Exception:
        with suppress(OSError):
            draft.unlink(missing_ok=True)  # half a file takes room that others need
        raise


def sync(path: Path) -> None:
    """Flush to disk a file's content, or the renames and removals of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

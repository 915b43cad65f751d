"""Reload of a suite that runs on this machine, requested by another command."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.kit.lock_file import LockFile

_LOCK: Final = "up.lock"
_RELOAD: Final = signal.SIGUSR1
"""Not SIGHUP, which a closed terminal sends."""


@contextmanager
def reloading(reload: Callable[[], None], logs: Path) -> Iterator[None]:
    """Call `reload` whenever another command requests it, while the block runs.

    Holds a lock; where another suite holds it, that one is found.

    Args:
        reload: Makes the services reload the deployment file.
        logs: Folder of the suite's logs.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(_RELOAD, reload)
    try:
        with LockFile(logs / _LOCK, "logs") as lock:
            lock.take()
            yield
    finally:
        loop.remove_signal_handler(_RELOAD)


def request_reload(logs: Path) -> bool:
    """Make the suite with this folder of logs reload its file; return whether one runs."""
    path = logs / _LOCK
    if not path.exists():
        return False
    with LockFile(path, "logs") as lock:
        if lock.take():
            return False
        os.kill(lock.holder_pid(), _RELOAD)
        return True

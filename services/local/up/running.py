"""SIGHUP of a suite that runs on this machine: reload, or the end where its terminal has closed."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services.kit.lock_file import LockFile

_LOCK: Final = "up.lock"
_TERMINAL: Final = "/dev/tty"


@contextmanager
def reloading(reload: Callable[[], None], end: Callable[[], object], logs: Path) -> Iterator[None]:
    """Call `reload` at each SIGHUP while the block runs, or `end` where the terminal has closed.

    Holds a lock; where another suite holds it, that one is found.

    Args:
        reload: Makes the services reload the deployment file.
        end: Ends the suite.
        logs: Folder of the suite's logs.
    """
    loop = asyncio.get_running_loop()
    # A closed terminal sends SIGHUP, too. `nohup` has it ignored: then nothing is to end.
    tied = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def hung_up() -> None:
        if tied and not _has_terminal():
            end()
        else:
            reload()

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    with LockFile(logs / _LOCK, "logs") as lock:
        lock.take()
        yield


def request_reload(logs: Path) -> bool:
    """Make the suite with this folder of logs reload its file; return whether one runs."""
    path = logs / _LOCK
    if not path.exists():
        return False
    with LockFile(path, "logs") as lock:
        if lock.take():
            return False
        os.kill(lock.holder_pid(), signal.SIGHUP)
        return True


def _has_terminal() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True

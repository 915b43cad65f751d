"""How another command finds a suite that runs on this machine, and has it read its file again."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LOCK: Final = "up.lock"
_RELOAD: Final = signal.SIGUSR1
"""Not SIGHUP, which a closed terminal sends."""


@contextmanager
def reloading(reload: Callable[[], None], logs: Path) -> Iterator[None]:
    """Call `reload` whenever another command requests it, while the block runs.

    Holds a lock with this process's id in it; where another suite holds it, that one is found.

    Args:
        reload: Has the services read the deployment file again.
        logs: Folder of the suite's logs, which exists.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(_RELOAD, reload)
    try:
        with (logs / _LOCK).open("a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield
                return
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
    finally:
        loop.remove_signal_handler(_RELOAD)


def request_reload(logs: Path) -> bool:
    """Have the suite with this folder of logs read its file again; return whether one runs."""
    try:
        file = (logs / _LOCK).open("r", encoding="ascii")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # held: the process in it lives
            os.kill(int(file.read()), _RELOAD)
            return True
        return False

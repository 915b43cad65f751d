"""Ends processes that a suite would leave behind, however it ended."""

import asyncio
import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

from services.kit import process_table

COOKIE: Final = "SUITE_COOKIE"
"""Environment variable that every process of one suite inherits."""

PARENT: Final = "SUITE_PID"
"""Environment variable with the process that started the suite's services."""

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Request SIGTERM from the kernel for when the parent dies (Linux; else do nothing).

    A process whose parent died before this call belongs to another parent: it ends now.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGTERM)


def bearers(cookie: str, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes whose environment has this cookie (Linux; else none).

    Workers start sessions of their own so as to survive their agent; where the agent was killed,
    the cookie is what still ties them to the suite.
    """
    wanted = f"{COOKIE}={cookie}".encode()
    pids = sorted(int(entry.name) for entry in proc.glob("[0-9]*"))
    return [each for each in pids if wanted in process_table.environment(each, proc)]


async def end_bearers(cookie: str, *, grace_s: float = 2.0, step_s: float = 0.05) -> None:
    """End every process that has this cookie: SIGTERM, then after `grace_s` SIGKILL."""
    left = await asyncio.to_thread(bearers, cookie)
    _signal(left, signal.SIGTERM)
    waited_s = 0.0
    while left and waited_s < grace_s:
        await asyncio.sleep(step_s)
        waited_s += step_s
        left = await asyncio.to_thread(bearers, cookie)
    _signal(left, signal.SIGKILL)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

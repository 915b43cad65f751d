"""File descriptors: as many as the system permits, and a line where there are no more."""

import errno
import os
import resource
from typing import Final

from services.kit.clock import Clock
from services.kit.telemetry import logs

MOST: Final = 2**20
"""Descriptors where the system names no limit: the kernel's own."""

OTHERS: Final = 256
"""Descriptors of a service beside its connections: files, its own calls, devices."""

_REMEDY: Final = (
    "raise LimitNOFILE (systemd) or ulimit -n, or permit fewer connections (router.max_connections)"
)
_NEARLY_ALL: Final = 0.95
_LOOK_S: Final = 5.0
_SAID_AGAIN_S: Final = 60.0

_log = logs.get("descriptors")


def raise_limit() -> int:
    """Raise the limit of this process, and of what it starts, to the highest; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < highest:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        except (OSError, ValueError) as error:  # a sandbox's
            _log.warning("the limit of file descriptors stays", limit=soft, error=str(error))
            return soft
    return highest


def check_room(what: str, connections: int) -> None:
    """Warn where a server may take more connections than this process can have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < connections + OTHERS:
        _log.warning(
            f"fewer file descriptors than connections: {_REMEDY}",
            address=what,
            descriptors=limit,
            needed=connections + OTHERS,
        )


async def watch(clock: Clock) -> None:
    """Log when nearly all descriptors are taken, once a minute: connections are then closed."""
    said_s = -_SAID_AGAIN_S
    while True:
        await clock.sleep(_LOOK_S)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if (
            taken := _taken()
        ) >= _NEARLY_ALL * limit and clock.monotonic() - said_s >= _SAID_AGAIN_S:
            said_s = clock.monotonic()
            _log.warning(
                f"out of file descriptors, new connections are closed: {_REMEDY}",
                taken=taken,
                limit=limit,
            )


def _taken() -> int:
    """Return how many descriptors are taken at least: the lowest that is free."""
    try:
        lowest = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return MOST
    os.close(lowest)
    return lowest

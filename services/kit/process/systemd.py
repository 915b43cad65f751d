"""Reports to systemd that a service serves, and that it is alive: units of `Type=notify`.

The protocol is sd_notify(3): datagrams of "NAME=VALUE" to the socket in $NOTIFY_SOCKET. Without
systemd nothing is sent.
"""

import asyncio
import os
import socket
from typing import Final

from services.kit.telemetry import logs

_log = logs.get("systemd")

_PATIENCE_S: Final = 30.0
"""Time after which a service counts as started although it waits for others, s: systemd must not
end a router because the planner is away."""

_sockets: Final[list[str]] = []


def adopt() -> float:
    """Take the socket over from the environment, so that no child process inherits it.

    Returns:
        Time between two signs of life that systemd waits for, s; 0: it waits for none.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    watchdog_us = os.environ.pop("WATCHDOG_USEC", "0")
    process = os.environ.pop("WATCHDOG_PID", "")
    _sockets[:] = [address] if address else []
    mine = not process or process == str(os.getpid())
    return int(watchdog_us) / 1e6 if mine and watchdog_us.isdecimal() else 0.0


def ready(status: str = "serves") -> None:
    """Say that the service has started."""
    notify("READY=1", f"STATUS={status}")


def notify(*assignments: str) -> None:
    """Send assignments in one datagram; a socket that is gone changes nothing."""
    for address in _sockets:
        name = f"\0{address[1:]}" if address.startswith("@") else address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(assignments).encode(), name)
        except OSError as error:
            _log.debug("systemd does not listen", why=str(error))


async def live(stop: asyncio.Event, watchdog_s: float, patience_s: float = _PATIENCE_S) -> None:
    """Give signs of life from the event loop until cancelled, and say when the service stops.

    Args:
        stop: Ends the service.
        watchdog_s: As `adopt` returned it, s.
        patience_s: Time after which the service counts as started in any case, s.
    """
    if not _sockets:
        return
    async with asyncio.TaskGroup() as tasks:
        begun = tasks.create_task(_begun(patience_s), name="systemd.begun")
        if watchdog_s:
            tasks.create_task(_beat(watchdog_s / 3), name="systemd.watchdog")
        await stop.wait()
        begun.cancel()
        notify("STOPPING=1")


async def _begun(patience_s: float) -> None:
    await asyncio.sleep(patience_s)
    notify("READY=1")  # without a status: it may have said one


async def _beat(period_s: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_s)

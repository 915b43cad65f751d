"""Messages of sd_notify(3): started once it serves, alive while its event loop turns."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kit.process import systemd
from services.kit.rpc import HealthServicer
from tests.rpc.kit.test_service_process import nothing
from tests.support.scripted_service import scripted


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen as systemd does, for the service that is this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        for name, value in {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "30000",
            "WATCHDOG_PID": str(os.getpid()),
        }.items():
            monkeypatch.setenv(name, value)
        yield listener
    systemd.adopt()  # the environment has none any more


async def heard(manager: socket.socket) -> str:
    async with asyncio.timeout(45):
        return (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode()


async def test_a_service_has_started_once_it_serves_and_shows_that_it_lives(
    manager: socket.socket,
) -> None:
    watchdog_s, stop = systemd.adopt(), asyncio.Event()
    living = asyncio.create_task(systemd.live(stop, watchdog_s))
    for _ in range(2):
        assert await heard(manager) == "WATCHDOG=1"
    health = HealthServicer(systemd.ready)
    async with scripted(nothing, ready=False, health_servicer=health) as (_, _, server):
        await server.set_ready(ready=True)
        while (said := await heard(manager)) == "WATCHDOG=1":
            pass
    stop.set()
    while (last := await heard(manager)) == "WATCHDOG=1":
        pass
    living.cancel()

    assert watchdog_s == 0.03
    assert said == "READY=1\nSTATUS=serves"
    assert last == "STOPPING=1"
    assert "NOTIFY_SOCKET" not in os.environ  # a worker must not speak for the agent


async def test_a_service_that_waits_for_another_one_counts_as_started_in_the_end(
    manager: socket.socket,
) -> None:
    """Systemd would end a router whose planner is away."""
    systemd.adopt()
    living = asyncio.create_task(systemd.live(asyncio.Event(), 0.0, patience_s=0.01))

    assert await heard(manager) == "READY=1"
    living.cancel()

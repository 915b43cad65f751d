"""Faults of a site's services. Each coroutine returns when its fault is over."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.chaos.site import PAUSE_S, SETTLE_S

if TYPE_CHECKING:
    from benchmarks.chaos.site import Site

_JUMP_S: Final = 3600
_MANY_BYTES: Final = 1 << 16
_PAGE_BYTES: Final = 4096


def signalled(number: signal.Signals) -> Callable[[Site, str], Awaitable[None]]:
    """Return what sends a signal to a process."""

    async def do(site: Site, service: str) -> None:
        _send(await site.pid(service), number)

    return do


async def paused(site: Site, service: str) -> None:
    """Stop a process for a while."""
    pid = await site.pid(service)
    _send(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        _send(pid, signal.SIGCONT)


async def cut_off(site: Site, service: str) -> None:
    """Drop all traffic between a service and those that dial it, for a while."""
    async with site.proxies[service].black_hole():
        await asyncio.sleep(PAUSE_S)


async def machine_cut(site: Site, service: str) -> None:
    """Take the network of a machine that serves down, for long enough to be replaced."""
    machine = site.machines[(await site.name(service)).removeprefix("gpuagent-")]
    machine.cut()
    try:
        await asyncio.sleep(2 * PAUSE_S)
    finally:
        machine.mend()


# ---- disks -------------------------------------------------------------------------------------


async def full_disk(site: Site, service: str) -> None:
    """Fill the disk of a service, for a while."""
    ballast = site.disk(await site.name(service)) / "ballast"
    await asyncio.to_thread(_fill, ballast)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        ballast.unlink()


async def read_only_disk(site: Site, service: str) -> None:
    """Remount a service's disk read-only, for a while; open files stay open for writing."""
    disk = str(site.disk(await site.name(service)))
    await _run("mount", "--bind", disk, disk)
    try:
        await _run("mount", "-o", "remount,bind,ro", disk)
        await asyncio.sleep(PAUSE_S)
    finally:
        await _run("umount", "--lazy", disk)


async def killed_read_only(site: Site, service: str) -> None:
    """Kill a service, which starts again where its disk is read-only."""
    pid = await site.pid(service)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read_only_disk(site, service), name="chaos.read_only")
        await asyncio.sleep(0.5)
        _send(pid, signal.SIGKILL)


async def killed_without_a_lease(site: Site, service: str) -> None:
    """Kill a service when the planners' disk has been full for longer than a lease lasts."""
    pid = await site.pid(service)
    ballast = site.disk("planner") / "ballast"
    await asyncio.to_thread(_fill, ballast)
    try:
        await asyncio.sleep(PAUSE_S)
        _send(pid, signal.SIGKILL)
        await asyncio.sleep(2 * PAUSE_S)
    finally:
        ballast.unlink()


# ---- damaged files -----------------------------------------------------------------------------


async def damaged_account(site: Site, service: str) -> None:
    """Flip a bit of the energy accounts of an agent that is then killed; it sets them aside."""
    name = await site.name(service)
    await _killed_over(site, name, [*(site.disk(name) / "energy").iterdir()])


async def damaged_journal(site: Site, service: str) -> None:
    """Flip a bit of the journal of an agent that is then killed; an operator removes it."""
    name = await site.name(service)
    journal = site.disk(name) / "journal.json"
    await _killed_over(site, name, [journal])
    await asyncio.sleep(PAUSE_S / 2)
    journal.unlink()


async def damaged_database(site: Site, service: str) -> None:
    """Damage the database under both planners, kill them, and restore a backup."""
    database, backup = site.disk(service) / "planner.sqlite3", site.folder / "backup.sqlite3"
    await _command(site, "backup", str(backup))
    with closing(sqlite3.connect(database)) as opened:  # a new one is all in the log
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pids = [site.suite.processes[name] for name in ("planner", "planner-standby")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    _zero(database)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(PAUSE_S / 2)
    async with asyncio.timeout(SETTLE_S):
        while True:
            # Planners that are started again hold the database for the time that they look at it.
            with suppress(ChildProcessError):
                await _command(site, "restore", str(backup))
                return


def _send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, which another fault may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


async def _killed_over(site: Site, name: str, files: list[Path]) -> None:
    pid = site.suite.processes[name]
    os.kill(pid, signal.SIGSTOP)  # so that it writes none of them again
    for file in files:
        _flip(file)
    os.kill(pid, signal.SIGKILL)


def _zero(database: Path) -> None:
    """Fill the second page of an SQLite file with zeros; its log would make it good again."""
    database.with_name(f"{database.name}-wal").unlink(missing_ok=True)
    with database.open("r+b") as file:
        file.seek(_PAGE_BYTES)
        file.write(bytes(_PAGE_BYTES))


def _flip(file: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


# ---- clocks, PostgreSQL ------------------------------------------------------------------------


async def clock_jump(site: Site, service: str) -> None:
    """Set the wall clock of a service an hour ahead, and back after a while.

    Both planners share a host, and so its clock.
    """
    name = await site.name(service)
    names = [each for each in site.suite.processes if each.removesuffix("-standby") == name]
    for each in names:
        site.set_clock(each, _JUMP_S)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        for each in names:
            site.set_clock(each, 0.0)


async def database_restart(site: Site, service: str) -> None:  # noqa: ARG001 - there is one
    """Stop PostgreSQL, and start it again after a while."""
    await asyncio.to_thread(site.postgres.stop)
    await asyncio.sleep(PAUSE_S / 2)
    await asyncio.to_thread(site.postgres.ensure_postgres_running)


async def database_killed(site: Site, service: str) -> None:  # noqa: ARG001
    """Kill PostgreSQL, which then recovers from its log."""
    os.kill(site.postgres.get_pid(), signal.SIGKILL)
    await asyncio.sleep(PAUSE_S / 2)
    await asyncio.to_thread(site.postgres.ensure_postgres_running)


async def database_read_only(site: Site, service: str) -> None:  # noqa: ARG001
    """Make PostgreSQL refuse to write, as a server that was failed over from."""

    async def set_to(value: str) -> None:
        alter = f"ALTER SYSTEM SET default_transaction_read_only = {value};"
        await asyncio.to_thread(site.postgres.psql, alter)
        await asyncio.to_thread(site.postgres.psql, "SELECT pg_reload_conf();")

    await set_to("on")
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        await set_to("off")


# ---- helpers -----------------------------------------------------------------------------------


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(_MANY_BYTES)):
            pass


async def _command(site: Site, *words: str) -> None:
    config = str(site.folder / "cinquefoil.yaml")
    await _run(sys.executable, "-P", "-m", "services.cli", *words, "--config", config)


async def _run(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
    if status := await process.wait():
        raise ChildProcessError(f"{' '.join(argv)} ended with status {status}")

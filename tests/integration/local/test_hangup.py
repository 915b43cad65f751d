"""SIGHUP of a suite with a terminal and without: it reloads its file, or ends."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from services.local.up.running import reloading

async def main():
    ended = asyncio.Event()
    with reloading(lambda: print("reloaded", flush=True), ended.set, Path(sys.argv[1])):
        print("runs", flush=True)
        await ended.wait()
    print("ended", flush=True)

os.setsid()
if sys.argv[2] == "terminal":
    import fcntl, termios
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
asyncio.run(main())
"""


@pytest.fixture(params=["terminal", "none"])
def program(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], int, bool]]:
    """A process that reloads, its terminal's other end, and whether the terminal is its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), request.param],
        stdin=slave,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(slave)
    try:
        yield process, master, request.param == "terminal"
    finally:
        process.kill()
        process.communicate()


def test_a_hangup_reloads_and_a_closed_terminal_ends(
    program: tuple[subprocess.Popen[str], int, bool],
) -> None:
    """A terminal that is there, or that never was, is no reason to end."""
    process, terminal, tied = program
    assert process.stdout is not None
    said = [process.stdout.readline()]
    process.send_signal(1)
    said.append(process.stdout.readline())
    os.close(terminal)
    if not tied:
        process.send_signal(1)
    said.append(process.stdout.readline())

    assert said == ["runs\n", "reloaded\n", "ended\n" if tied else "reloaded\n"]
    if tied:
        assert process.wait() == 0

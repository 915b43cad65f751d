"""One process that is kept running."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from services.kit.backoff import Backoff
from services.kit.config import ExpectedServer, Tls
from services.kit.errors import FailedPrecondition
from services.local.up.health import until_listening, until_serving

_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Program:
    """A process to keep running.

    Attributes:
        name: Its name, and its log file's.
        argv: Command line.
        health: "host:port" of its grpc.health.v1; empty: it counts as serving once it runs.
        tls: How to dial it.
        expected: Role that its certificate must have; None: any.
        speaks: "http": it counts as serving once `health` takes connections.
    """

    name: str
    argv: tuple[str, ...]
    health: str = ""
    tls: Tls | None = None
    expected: ExpectedServer | None = None
    speaks: Literal["grpc", "http"] = "grpc"


class State(StrEnum):
    """State of a process."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class Process:
    """Keeps a program running until `stop`; restarts it with backoff when it dies.

    Attributes:
        program: Its program.
        log: File of its output.
        state: Its state.
        restarts: How often it was started again.
        served: Set once it served for the first time.
    """

    def __init__(self, program: Program, log: Path, environment: Mapping[str, str]) -> None:
        self.program = program
        self.log = log
        self.state = State.STARTING
        self.restarts = 0
        self.served = asyncio.Event()
        self._environment = dict(environment)
        self._stopping = asyncio.Event()
        self._child: asyncio.subprocess.Process | None = None
        self._backoff = Backoff(initial_s=0.2, maximum_s=5.0)

    @property
    def pid(self) -> int | None:
        """The running process; None between two lives."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    async def keep(self, grace_s: float) -> None:
        """Run the program until `stop`.

        Args:
            grace_s: Time it may take to drain after SIGTERM before it is killed, s.

        Raises:
            FailedPrecondition: It ended before it ever served; the message quotes its log.
        """
        try:
            while not self._stopping.is_set():
                status = await self._live(grace_s)
                if self._stopping.is_set():
                    break
                if not self.served.is_set():
                    raise FailedPrecondition(self._epitaph(status))
                self.state = State.RESTARTING
                self.restarts += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._backoff.next_s()):
                        await self._stopping.wait()
        finally:
            self.state = State.STOPPED

    def stop(self) -> None:
        """Make `keep` end the program and return."""
        self._stopping.set()

    async def _live(self, grace_s: float) -> int | None:
        name = self.program.name
        self._child = child = await self._spawn()
        try:
            async with asyncio.TaskGroup() as tasks:
                probe = tasks.create_task(self._until_serving(), name=f"{name}.health")
                ended = tasks.create_task(child.wait(), name=f"{name}.exit")
                stopped = tasks.create_task(self._stopping.wait(), name=f"{name}.stop")
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                for task in (probe, ended, stopped):
                    task.cancel()
        finally:
            await _end(child, grace_s)
        return child.returncode

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self._output() as output:
            return await asyncio.create_subprocess_exec(
                *self.program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # ctrl-c is the suite's to hear, not each service's
            )

    def _output(self) -> BinaryIO:
        """Open the log; only this user may read it."""
        return open(self.log, "ab", opener=partial(os.open, mode=0o600))

    async def _until_serving(self) -> None:
        if self.program.health and self.program.speaks == "http":
            await until_listening(self.program.health)
        elif self.program.health:
            await until_serving(self.program.health, self.program.tls, self.program.expected)
        self.state = State.SERVING
        self.served.set()
        self._backoff.reset()

    def _epitaph(self, status: int | None) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        quoted = "\n".join(f"    {line[:300]}" for line in lines)
        name = self.program.name
        return f"{name} ended with status {status} before it served. {self.log} says:\n{quoted}"


async def _end(child: asyncio.subprocess.Process, grace_s: float) -> None:
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        async with asyncio.timeout(grace_s):
            await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()

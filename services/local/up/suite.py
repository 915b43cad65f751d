"""A deployment as processes: started together, kept running, stopped in reverse order."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Self

from services.kit.config import Deployment
from services.kit.config.loader import load
from services.kit.errors import DeadlineExceeded
from services.local.endpoints import ServiceEndpoint, endpoints
from services.local.up.orphans import COOKIE, PARENT, end_bearers
from services.local.up.process import Process, Program, State


def programs(deployment: Deployment, config: Path) -> tuple[Program, ...]:
    """Return a process per service, in order of start; they stop in reverse.

    Names are those of `endpoints`, for example "carbon" and "gpuagent-node-0".
    """
    return tuple(
        _program(service, config.resolve(), deployment) for service in endpoints(deployment)
    )


def console(deployment: Deployment, config: Path) -> Program:
    """Return the console's process."""
    argv = _argv("console", config.resolve())
    return Program("console", argv, deployment.console.listen, speaks="http")


def _program(service: ServiceEndpoint, config: Path, deployment: Deployment) -> Program:
    node = ("--node", service.node) if service.node else ()
    argv = (*_argv(service.service, config), *node)
    tls, expected = deployment.identity("operator"), deployment.expected(service.role, service.node)
    return Program(service.name, argv, service.endpoint.dial, tls, expected)


def _argv(service: str, config: Path) -> tuple[str, ...]:
    # -P: a folder `services` of the user's, where the suite is started, is not ours.
    command = (sys.executable, "-P", "-m", "services.cli", service, "serve")
    return (*command, "--with-parent", "--config", str(config))


class Suite:
    """Runs programs while its block runs; leaves no process behind.

    Entering waits until every program serves. A program that dies later is restarted. Leaving
    stops them one service after the other, the last first and all agents together, and then ends
    whatever they left.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        logs: Path,
        *,
        environment: Mapping[str, str] | None = None,
        start_s: float = 60.0,
        grace_s: float = 15.0,
    ) -> None:
        """Prepare a suite.

        Args:
            programs: What to run, in order of start.
            logs: Folder for one log file per program.
            environment: Of the programs; None: this process's.
            start_s: Longest time until all serve, s.
            grace_s: Time each may take to drain, s.
        """
        self.logs = logs
        self._cookie = secrets.token_hex(8)
        base = os.environ if environment is None else environment
        self._environment = {**base, COOKIE: self._cookie, PARENT: str(os.getpid())}
        self._start_s, self._grace_s = start_s, grace_s
        self.members = {
            program.name: Process(program, logs / f"{program.name}.log", self._environment)
            for program in programs
        }
        self._running: asyncio.Task[None]
        self._keeping: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def of(
        cls,
        config: Path,
        logs: Path,
        *,
        without: Sequence[str] = (),
        with_console: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Suite:
        """Return the suite of a deployment file, some programs left out by name.

        The console is among them on request, where the file has it.

        Raises:
            ConfigError: The file is wrong.
        """
        deployment = load(config)
        chosen = [each for each in programs(deployment, config) if each.name not in without]
        if with_console and deployment.console.listen:
            chosen.append(console(deployment, config))
        return cls(chosen, logs, environment=environment)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the programs that run now, by name."""
        return {name: member.pid for name, member in self.members.items() if member.pid}

    def reload(self) -> None:
        """Make every service reload the deployment file (SIGHUP); one that starts reads it anyway.

        The planner comes last: it places new variants as soon as it knows them.
        """
        for name in sorted(self.members, key=lambda name: name == "planner"):
            member = self.members[name]
            if member.state is State.SERVING and member.pid is not None:
                os.kill(member.pid, signal.SIGHUP)

    async def watch(self, timeout_s: float) -> None:
        """Wait for `timeout_s`; raise at once where the suite has failed."""
        await asyncio.wait({self._running}, timeout=timeout_s)
        if self._running.done():
            self._running.result()

    async def __aenter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._running = asyncio.create_task(self._keep(), name="suite")
        serving = asyncio.create_task(self._all_serve(), name="suite.start")
        try:
            async with asyncio.timeout(self._start_s):
                await asyncio.wait({serving, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if self._running.done():
                await self._running
        except TimeoutError:
            await self._end()
            late = [
                f"{name} did not serve at {one.program.health}"
                for name, one in self.members.items()
                if not one.served.is_set()
            ]
            raise DeadlineExceeded(
                f"{', '.join(late)} within {self._start_s:g} s; see {self.logs}"
            ) from None
        except BaseException:
            await self._end()
            raise
        finally:
            serving.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _keep(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, member in self.members.items():
                keeping = member.keep(self._grace_s)
                self._keeping[name] = tasks.create_task(keeping, name=f"suite.{name}")

    async def _all_serve(self) -> None:
        for member in self.members.values():
            await member.served.wait()

    async def _end(self) -> None:
        try:
            # Agents together, or the planner would move one's segments to the next that stops.
            for _, group in groupby(reversed(self._keeping), lambda name: name.partition("-")[0]):
                names = tuple(group)
                for name in names:
                    self.members[name].stop()
                await asyncio.wait({self._keeping[name] for name in names})
        finally:
            self._running.cancel()
            await asyncio.wait({self._running})
            await end_bearers(self._cookie)

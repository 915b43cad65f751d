"""The process of an external server, started for one worker."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dotenv import dotenv_values

from services.gpuagent.core.worker_spec import External
from services.kit.net import free_port

_DIE_WITH_PARENT: Final = "services.gpuagent.worker.die_with_parent"
_GRACE_S: Final = 5.0
_BLANK: Final = re.compile(r"\{(port(?:_[1-9])?|file)\}")


class Server:
    """A server that a worker calls. Attributes: address ("host:port" where it serves gRPC)."""

    def __init__(self, address: str, process: asyncio.subprocess.Process | None = None) -> None:
        self.address = address
        self._process = process

    async def ended(self, timeout_s: float) -> str:
        """Wait for its end, at most so long; return what happened, or "" where nothing did."""
        if self._process is None:
            await asyncio.sleep(timeout_s)
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                status = await self._process.wait()
                return f"the model's server ended with status {status}"
        return ""

    async def stop(self) -> None:
        """End it, where the worker started it."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        if not await self.ended(_GRACE_S):
            self._process.kill()
            await self._process.wait()


def with_environment_file(external: External) -> External:
    """Return the server with the variables of its file in its environment. Reads the file: blocks.

    Raises:
        RuntimeError: The file cannot be read, or a line has no value.
    """
    file = external.environment_file
    if file is None:
        return external
    try:
        with file.open(encoding="utf-8") as lines:
            found = dotenv_values(stream=lines, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(f"runtime.environment_file: {error}") from error
    read = {name: value for name, value in found.items() if value is not None}
    if read.keys() != found.keys():
        lacking = ", ".join(sorted(found.keys() - read.keys()))
        raise RuntimeError(f"runtime.environment_file: {file}: must be NAME=value: {lacking}")
    return replace(external, environment=tuple({**dict(external.environment), **read}.items()))


@asynccontextmanager
async def started(external: External, file: Path) -> AsyncIterator[Server]:
    """Start the server while the block runs, or take the one that runs already.

    Raises:
        RuntimeError: Its program cannot be started.
    """
    if external.address:
        yield Server(external.address)
        return
    blanks = {"file": str(file)} | _ports()
    command = [_filled(word, blanks) for word in external.command]
    environment = {name: _filled(value, blanks) for name, value in external.environment}
    # The server of a worker that is killed must not keep the slice's memory. -P: a folder
    # `services` in the current directory must not come before ours.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", _DIE_WITH_PARENT, str(os.getpid()), *command),
        stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    server = Server(f"127.0.0.1:{blanks['port']}", process)
    try:
        yield server
    finally:
        await server.stop()


def _ports() -> dict[str, str]:
    names = ["port", *(f"port_{number}" for number in range(1, 10))]
    ports: set[int] = set()
    while len(ports) < len(names):
        ports.add(free_port())
    return dict(zip(names, map(str, sorted(ports)), strict=True))


def _filled(word: str, blanks: Mapping[str, str]) -> str:
    return _BLANK.sub(lambda blank: blanks[blank[1]], word)

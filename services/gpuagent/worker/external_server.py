"""The process of an external server, started for one worker."""

import asyncio
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dotenv import dotenv_values

from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import OpenAiRuntime, ServerRuntime
from services.kit.errors import Unavailable
from services.kit.net import free_port
from services.kit.telemetry import logs

_DIE_WITH_PARENT: Final = Path(__file__).with_name("die_with_parent.py")
_OURS: Final = "GRPC_ENABLE_FORK_SUPPORT"
"""Variables that `services` sets for processes that never fork while gRPC runs; a server may."""
_GRACE_S: Final = 5.0
_POLL_S: Final = 0.2
_CHECK_PERIOD_S: Final = 1.0
_CHECKS_LOST: Final = 3
_log = logs.get("worker")

_BLANK: Final = re.compile(r"\{(port(?:_[1-9])?|file|api_key|gpu_uuids|gpus)\}")


@dataclass(slots=True, eq=False)
class Server:
    """A server that a worker calls.

    Attributes:
        address: "host:port" where it serves.
        api_key: To show to it, where it takes one; "": none.
        process: Its own; None: the worker did not start it.
    """

    address: str
    api_key: str = field(default="", repr=False)
    process: asyncio.subprocess.Process | None = None
    _away: str = ""
    _open: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Its name in errors."""
        return f"the model's server at {self.address}"

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Run a block in which it answers a request; it ends when the server is found to be away.

        Raises:
            Unavailable: It is away.
        """
        if self._away:
            raise Unavailable(self._away)
        try:
            async with asyncio.timeout(None) as limit:
                self._open.add(limit)
                try:
                    yield
                finally:
                    self._open.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unavailable(self._away) from None

    async def until_ready(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the server has the model ready.

        Raises:
            RuntimeError: It ended.
        """
        while not await ready():
            if ended := await self.ended(_POLL_S):
                raise RuntimeError(ended)

    async def failure(self, ready: Callable[[], Awaitable[bool]], model: str) -> str:
        """Wait until it has ended, or was not ready several times; return the reason.

        One that the worker did not start may come back, and a new worker would not help: until then
        requests are refused at once.
        """
        lost = 0
        while True:
            if ended := await self.ended(_CHECK_PERIOD_S):
                return ended
            lost = 0 if await ready() else lost + 1
            if 0 < lost < _CHECKS_LOST:
                continue
            away = f"{self.name} does not have {model!r} ready any more" if lost else ""
            if away and self.process is not None:
                return away
            if away != self._away:
                self._turn_away(away)

    def _turn_away(self, why: str) -> None:
        """Refuse requests, open ones too, from now on; "": no longer."""
        self._away = why
        _log.warning(why or f"{self.name} is ready again")
        now_s = asyncio.get_running_loop().time()
        for limit in self._open:
            if why:
                limit.reschedule(now_s)

    async def ended(self, timeout_s: float) -> str:
        """Wait for its end, at most so long; return the reason, or "" if it still runs."""
        if self.process is None:
            await asyncio.sleep(timeout_s)
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                status = await self.process.wait()
                return f"the model's server ended with status {status}"
        return ""

    async def stop(self) -> None:
        """End it, where the worker started it."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        if not await self.ended(_GRACE_S):
            self.process.kill()
            await self.process.wait()


def with_secrets(spec: WorkerSpec) -> WorkerSpec:
    """Return the spec with what its server's files of secrets have: variables, and its API key.

    Reads files: blocks.

    Raises:
        RuntimeError: A file cannot be read, or a line of variables has no value.
    """
    runtime = spec.runtime
    if isinstance(runtime, OpenAiRuntime) and runtime.api_key_file is not None:
        try:
            key = runtime.api_key_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RuntimeError(f"runtime.api_key_file: {error}") from error
        spec = spec.model_copy(update={"api_key": key})
    if isinstance(runtime, ServerRuntime) and runtime.environment_file is not None:
        variables = runtime.environment | _variables(runtime.environment_file)
        runtime = runtime.model_copy(update={"environment": variables})
        spec = spec.model_copy(update={"runtime": runtime})
    return spec


def _variables(file: Path) -> dict[str, str]:
    try:
        with file.open(encoding="utf-8") as lines:
            found = dotenv_values(stream=lines, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(f"runtime.environment_file: {error}") from error
    read = {name: value for name, value in found.items() if value is not None}
    if read.keys() != found.keys():
        lacking = ", ".join(sorted(found.keys() - read.keys()))
        raise RuntimeError(f"runtime.environment_file: {file}: must be NAME=value: {lacking}")
    return read


@asynccontextmanager
async def started(spec: WorkerSpec, runtime: ServerRuntime) -> AsyncIterator[Server]:
    """Start the server while the block runs, or take the one that runs already.

    Raises:
        RuntimeError: Its program cannot be started.
    """
    if runtime.address:
        yield Server(runtime.address, spec.api_key)
        return
    api_key = secrets.token_hex(32)
    gpus = spec.gpu_uuids
    held = {"gpu_uuids": ",".join(gpus), "gpus": str(len(gpus))}
    blanks = {"file": str(spec.file), "api_key": api_key, **held} | _ports()
    command = [_filled(word, blanks) for word in runtime.command]
    environment = {name: _filled(value, blanks) for name, value in runtime.environment.items()}
    inherited = {name: value for name, value in os.environ.items() if name != _OURS}
    # The server of a worker that is killed must not keep the slice's memory. As a file, with -P:
    # no package `services` is imported, neither ours nor one in the current directory.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", str(_DIE_WITH_PARENT), str(os.getpid()), *command),
        stdin=asyncio.subprocess.DEVNULL,
        env={**inherited, **environment},
    )
    server = Server(f"127.0.0.1:{blanks['port']}", api_key, process)
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

"""A real broker, Mosquitto, and its own command-line clients: somebody else's MQTT."""

import asyncio
import shutil
import socket
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.kit.net import free_port

_PROGRAMS = ("mosquitto", "mosquitto_sub", "mosquitto_pub")
_LONGEST_S = 15.0


def _path(program: str) -> str | None:
    """Return where a program is; Debian keeps the broker where only root looks."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def needed() -> None:
    """Skip the test on machines without Mosquitto."""
    missing = [program for program in _PROGRAMS if _path(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: mosquitto, mosquitto-clients)")


@dataclass
class Broker:
    """A broker on a port of its own that forgets everything when it ends.

    Attributes:
        folder: For its configuration.
        options: Further lines of that.
        client: Settings that clients need to connect.
    """

    folder: Path
    options: Sequence[str] = ("allow_anonymous true",)
    client: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = self._launch()
        async with asyncio.timeout(_LONGEST_S):
            while not self._listens():
                assert self._process.poll() is None, (self.folder / "mosquitto.log").read_text()
                await asyncio.sleep(0.02)

    def _launch(self) -> subprocess.Popen[bytes]:
        config, program = self.folder / "mosquitto.conf", _path("mosquitto")
        assert program is not None
        lines = (f"listener {self.port} 127.0.0.1", *self.options)
        config.write_text("\n".join(lines))
        with (self.folder / "mosquitto.log").open("ab") as log:
            command = (program, "-c", config)
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        """End it as a crash would; it keeps nothing on the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def publish(self, topic: str, payload: str | bytes, *, retain: bool = False) -> None:
        """Publish a message as somebody else."""
        kept = ("-r",) if retain else ()
        arguments = (*self._arguments("mosquitto_pub"), "-q", "1", *kept, "-t", topic, "-s")
        process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE)
        await process.communicate(payload.encode() if isinstance(payload, str) else payload)
        assert process.returncode == 0

    @asynccontextmanager
    async def subscribed(self, topic: str) -> AsyncIterator[asyncio.StreamReader]:
        """Subscribe as somebody else; yields lines of "<topic> <retained: 0|1> <payload>"."""
        arguments = (*self._arguments("mosquitto_sub"), "-q", "1", "-F", "%t %r %p", "-t", topic)
        process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE, stderr=DEVNULL)
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def retained(self, topic: str) -> str:
        """Return the payload that a new subscriber gets of a topic, waiting for it."""
        async with asyncio.timeout(_LONGEST_S), self.subscribed(topic) as lines:
            line = (await lines.readline()).decode()
            return line.split(" ", 2)[2].rstrip("\n")

    def _arguments(self, program: str) -> tuple[str, ...]:
        path = _path(program)
        assert path is not None
        return (path, "-h", self.host, "-p", str(self.port), "-V", "5", *self.client)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@asynccontextmanager
async def brokering(broker: Broker) -> AsyncIterator[Broker]:
    """Run a broker while the block runs; skips where there is none to run."""
    needed()
    await broker.start()
    try:
        yield broker
    finally:
        broker.kill()

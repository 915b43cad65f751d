"""Servers as processes of their own: started, awaited, metered, ended.

They start through `subprocess`, not through the loop: uvloop forks, and gRPC's threads do
not like that.
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from benchmarks.router import messages
from benchmarks.router.security import Security

ROOT = Path(__file__).parents[2]
_END_S = 5.0
_TAIL = 200


class Unavailable(Exception):
    """A server does not run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers.

    Attributes:
        port: Port of gRPC on 127.0.0.1.
        process: The first process; those that it started count as the server's own.
        security: Certificates and token of its clients; None: plaintext.
    """

    port: int
    process: psutil.Process
    security: Security | None = None

    def cpu_s(self) -> float:
        """Return the CPU time its living processes have used."""
        times = [each.cpu_times() for each in self._all()]
        return sum(each.user + each.system for each in times)

    def rss_bytes(self) -> int:
        """Return their resident memory."""
        return sum(each.memory_info().rss for each in self._all())

    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


@asynccontextmanager
async def started(  # noqa: PLR0913 - one value per fact of a server
    command: Sequence[str | Path | int],
    port: int,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    patience_s: float = 30.0,
    security: Security | None = None,
) -> AsyncIterator[Server]:
    """Run a server while the block runs.

    Args:
        command: Starts it.
        port: Port at which it will answer ModelInfer.
        folder: For its log.
        environment: Variables for it, beside ours.
        patience_s: Time it may take to answer.
        security: Certificates and token of its clients; None: plaintext.

    Raises:
        Unavailable: The server ended, or did not answer in time.
    """
    log = folder / "log"
    with log.open("wb") as out:
        process = await asyncio.to_thread(
            subprocess.Popen,
            list(map(str, command)),
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        if not await _answers(process, port, patience_s, security):
            tail = " ".join(log.read_text(errors="replace").split())[-_TAIL:]
            raise Unavailable(f"no answer on port {port}: {tail}")
        yield Server(port, psutil.Process(process.pid), security)
    finally:
        await asyncio.to_thread(_end, process)


async def _answers(
    process: subprocess.Popen[bytes], port: int, patience_s: float, security: Security | None
) -> bool:
    """Return whether a request is answered before the process ends or the time is up."""
    try:
        async with asyncio.timeout(patience_s), messages.channel(port, security) as channel:
            while process.poll() is None:
                try:
                    await messages.infer(channel)(messages.request("small"), timeout=patience_s)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.1)
                else:
                    return True
    except TimeoutError:
        pass
    return False


async def finished(
    *command: str | Path | int,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Args:
        command: Starts it.
        environment: All variables of the program; None: ours.
        limit_s: Time it may take.

    Raises:
        subprocess.TimeoutExpired: It took longer, and was killed.
    """
    return await asyncio.to_thread(
        subprocess.run,
        list(map(str, command)),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and make sure that it and all its children end."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(family, 1.0)
    for each in alive:
        each.kill()

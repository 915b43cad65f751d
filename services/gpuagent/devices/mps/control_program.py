"""MPS by its control program, `nvidia-cuda-mps-control`, in the interface "legacy v2".

Source: NVIDIA, Multi-Process Service, "MPS v2 interface" and "Common tasks"; MIG User Guide, "MIG
with CUDA MPS".
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import psutil

from cinquefoil.gpuagent.v1.records import MpsLimit
from services.gpuagent.core.mps_limits import memory_value
from services.kit import process_table
from services.kit.errors import FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs

_log = logs.get("mps")

_PRIVATE: Final = 0o700
_SOCKET_PATH_MAX: Final = 107
"""Bytes in the path of a Unix socket (sun_path of unix(7), without its end)."""
_SOCKET: Final = "control_privileged"
"""The longest name of a socket that the daemon makes in its pipe directory."""
_DEVICE: Final = "0"
"""A daemon sees one device."""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A control daemon: a slice has its own, and so has a GPU without MIG.

    Every call ends within a bounded time.

    Attributes:
        program: The control program.
        timeout_s: Time that it has for each command, s.
        device_uuid: "MIG-..." or "GPU-...": all that its clients see.
        folder: Its files; no other process writes there.
    """

    program: Path
    timeout_s: float
    device_uuid: str
    folder: Path

    @property
    def pipes(self) -> Path:
        """Its CUDA_MPS_PIPE_DIRECTORY."""
        return self.folder / "pipe"

    @property
    def logs(self) -> Path:
        """Its CUDA_MPS_LOG_DIRECTORY."""
        return self.folder / "log"

    async def start(self, ceiling: MpsLimit) -> None:
        """Start it, in place of one that does not answer; no client may exceed the ceiling.

        Raises:
            FailedPrecondition: It cannot run here.
            Unavailable: It does not answer.
        """
        await self._end(0.0)
        self._prepare()
        await self._launch()
        try:
            await self._bound(ceiling)
        except ServiceError:
            await self.stop()  # one without bounds must not be taken for one with
            raise
        _log.info("started an MPS control daemon", device=self.device_uuid)

    async def check(self) -> float:
        """Make sure that it answers; return its clients' share of the SMs, percent.

        Raises:
            Unavailable: It does not.
        """
        answer = await self._command("get_default_active_thread_percentage")
        try:
            return float(answer)
        except ValueError:
            raise Unavailable(f"MPS on {self.device_uuid} answered {answer!r}") from None

    async def stop(self) -> None:
        """End it, by force if it does not answer; do nothing if it does not run."""
        with suppress(ServiceError):
            await self._command("quit")
        await self._end(self.timeout_s)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def environment(self, limit: MpsLimit) -> Mapping[str, str]:
        """Return what makes a process a client, with its limit.

        A client names no device: it sees its daemon's.
        """
        memory = memory_value(limit)
        return {
            **self._places,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(limit.thread_percentage),
            **({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{_DEVICE}={memory}"} if memory else {}),
        }

    # ---- helpers

    @property
    def _places(self) -> dict[str, str]:
        return {_PIPES: str(self.pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}

    def _prepare(self) -> None:
        socket = self.pipes / _SOCKET
        if len(os.fsencode(socket)) > _SOCKET_PATH_MAX:
            raise FailedPrecondition(
                f"MPS needs a shorter path than {socket}: at most {_SOCKET_PATH_MAX} bytes; "
                "shorten nodes.<name>.state_dir",
                reason="PATH_TOO_LONG",
            )
        shutil.rmtree(self.pipes, ignore_errors=True)
        for folder in (self.folder, self.pipes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(_PRIVATE)  # a process that can write there commands the daemon

    async def _launch(self) -> None:
        """Start the daemon; its program goes to the background when it listens."""
        environment = {**self._places, "CUDA_VISIBLE_DEVICES": self.device_uuid}
        status, words = await asyncio.to_thread(self._run, ("-d",), environment)
        if status != 0:
            raise FailedPrecondition(
                f"cannot start MPS on {self.device_uuid}: {words or f'status {status}'}",
                reason="MPS_FAILED",
            )

    async def _bound(self, ceiling: MpsLimit) -> None:
        """Set the limits of future clients, and read them back."""
        percentage, memory = ceiling.thread_percentage, memory_value(ceiling)
        await self._command(f"set_default_active_thread_percentage {percentage}")
        if memory:
            await self._command(f"set_default_device_pinned_mem_limit {_DEVICE} {memory}")
        found = await self.check()
        if round(found) != percentage:
            raise Unavailable(
                f"MPS on {self.device_uuid} took {found} % where {percentage} % is due"
            )

    async def _end(self, patience_s: float) -> None:
        """Wait until no daemon runs there; kill one that does not end."""
        if await asyncio.to_thread(end_daemon, self.program.name, self.pipes, patience_s):
            _log.warning("an MPS control daemon was ended by force", device=self.device_uuid)

    async def _command(self, command: str) -> str:
        """Send it one command and return its answer.

        Raises:
            Unavailable: It does not run, or does not answer.
        """
        status, answer = await asyncio.to_thread(self._run, (), self._places, f"{command}\n")
        if status != 0:
            raise Unavailable(f"MPS on {self.device_uuid}: {command}: {answer}")
        return answer

    def _run(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], said: str = ""
    ) -> tuple[int, str]:
        """Run the program and return its status and what it said. Blocks.

        Raises:
            FailedPrecondition: There is no such program.
            Unavailable: It did not end in time.
        """
        own = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        with TemporaryFile() as output:  # no pipe: a daemon would hold its end open
            try:
                ended = subprocess.run(  # noqa: S603 - the operator's program, no shell
                    [str(self.program), *arguments],
                    input=said.encode(),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**own, **environment},
                    timeout=self.timeout_s,
                    start_new_session=True,  # what interrupts the agent must not end its daemons
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Unavailable(
                    f"{self.program.name} did not answer within {self.timeout_s:g} s: "
                    f"{said.strip() or ' '.join(arguments)}"
                ) from None
            except OSError as error:
                raise FailedPrecondition(
                    f"cannot run {self.program}: {error.strerror}; MPS lets several processes "
                    "share a slice: install it, or plan with planner.max_processes: 1",
                    reason="NO_MPS",
                ) from error
            output.seek(0)
            return ended.returncode, output.read().decode(errors="replace").strip()


# ---- the process table, which no note of a process id can contradict; blocks ---------------------

_PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"


def daemons(program: str, root: Path) -> dict[Path, list[psutil.Process]]:
    """Return the daemons whose pipe directory lies below `root`, by that directory."""
    found: dict[Path, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        command = process_table.command(process.pid)
        if "-d" not in command or all(Path(word).name != program for word in command):
            continue
        with suppress(psutil.Error):
            pipes = Path(process_table.variable(process.pid, _PIPES))
            if pipes.is_relative_to(root) and process.status() != psutil.STATUS_ZOMBIE:
                found.setdefault(pipes, []).append(process)
    return found


def end_daemon(program: str, pipes: Path, patience_s: float) -> bool:
    """Wait for a daemon's end, then kill it with its servers; return whether it was killed."""
    processes = daemons(program, pipes).get(pipes, [])
    _, alive = psutil.wait_procs(processes, timeout=patience_s if processes else 0)
    for process in alive:
        with suppress(psutil.Error):
            family = [*process.children(recursive=True), process]
            for each in family:
                with suppress(psutil.Error):
                    each.kill()
            psutil.wait_procs(family, timeout=patience_s)
    return bool(alive)

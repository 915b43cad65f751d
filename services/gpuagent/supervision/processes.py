"""Worker processes: start them, find those that an earlier agent started, end them.

A worker is known by the spec file it was started with, which only one ever has. So the process
table itself shows which workers run, and no note of a process id can be stale.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from services.gpuagent.core.worker_spec import NOT_LOADED
from services.kit import process_table
from services.kit.process.environment import one_thread, passed_on
from services.kit.segment import plain

_MODULE: Final = "services.gpuagent.worker"
_POLL_S: Final = 0.05
_TAIL_BYTES: Final = 2000
_PASSED_ON: Final = (
    "CUDA_", "GGML_", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "NVIDIA_", "OTEL_", "SSL_CERT_",
    "XDG_",
)  # fmt: skip
"""Beginnings of variables that workers need beside those of every process: for their devices, for
the folder of weights that a server looks into, for the collector of their spans, and certificates
of others. Secrets of a server, such as HF_TOKEN, are in `runtime.environment_file`."""

_NOT_PASSED_ON: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_")
"""The agent's own restrictions of visible GPUs, which its workers do not inherit."""

_CREDENTIALS: Final = "_HEADERS"
"""End of the variables of OpenTelemetry that hold a collector's credentials."""


class WorkerProcess:
    """A worker process, this agent's child or adopted."""

    def __init__(self, process: psutil.Process, child: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._child = child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Its exit status, where it has ended and was our child; negative: the signal."""
        return None if self._child is None else self._child.returncode

    def alive(self) -> bool:
        """Return whether it runs; one that ended and waits for its parent does not."""
        if self._child is not None:
            return self._child.poll() is None
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def memory_bytes(self, *, family: bool = False) -> int:
        """Return its resident memory, bytes; 0: it has ended. Blocks.

        Args:
            family: Count the processes below it too.
        """
        total = 0
        with suppress(psutil.NoSuchProcess):
            below = self._process.children(recursive=True) if family else []
            for process in (self._process, *below):
                with suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss
        return total

    def sweep(self) -> None:
        """Kill the processes that it left behind: it led a process group of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait until it does not run any more."""
        while self.alive():  # noqa: ASYNC110 - another's child sends no SIGCHLD
            await asyncio.sleep(_POLL_S)

    async def end(self, grace_s: float) -> None:
        """Request a drain, wait up to `grace_s`, then kill it; return when it has ended."""
        with suppress(psutil.NoSuchProcess):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.ended()
        except TimeoutError:
            with suppress(psutil.NoSuchProcess):
                self._process.kill()
            await self.ended()


def start(spec: Path, log: Path, environment: Mapping[str, str]) -> WorkerProcess:
    """Start a worker in a session of its own, so that it outlives this agent. Blocks for ms."""
    ours = {
        key: value
        for key, value in passed_on(*_PASSED_ON).items()
        if not (key.startswith(_NOT_PASSED_ON) or key.endswith(_CREDENTIALS))
    }
    with open(log, "ab", opener=partial(os.open, mode=0o600)) as errors:
        # The child outlives us on purpose, so it is not waited for here.
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            # -P: a folder `services` where the agent was started must not come before ours.
            [sys.executable, "-P", "-m", _MODULE, str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env={**ours, **one_thread(), **environment},
            start_new_session=True,
        )
    return WorkerProcess(psutil.Process(child.pid), child)


def running(folder: Path) -> dict[Path, WorkerProcess]:
    """Return the workers whose spec file is in `folder`, by spec file. Blocks."""
    found: dict[Path, WorkerProcess] = {}
    for process in psutil.process_iter():
        command = process_table.command(process.pid)
        if _MODULE in command and Path(command[-1]).parent == folder:
            worker = WorkerProcess(process, None)
            if worker.alive():
                found[Path(command[-1])] = worker
    return found


def last_words(log: Path) -> str:
    """Return the message of the last line of a worker's log, or "" where there is none.

    Of a worker that could not load its model, with the line before: that of the model's server,
    which has seen no request yet.
    """
    with suppress(FileNotFoundError):
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _TAIL_BYTES, 0))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").strip().splitlines()
        said = _said(lines[-1]) if lines else ""
        before = lines[-2].strip() if len(lines) > 1 else ""
        if said.startswith(NOT_LOADED) and before and _said(before) == before:
            return f"{said}: {plain(before)}"
        return said
    return ""


def _said(line: str) -> str:
    """Return the message of a line of structured log, or the line where it is another."""
    try:
        entry = json.loads(line)
        return f"{entry['event']}: {entry['error']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return line

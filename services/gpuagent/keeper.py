"""Keeps one worker process alive, on the endpoint it was announced with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.gpuagent import processes
from services.gpuagent.ledger import Ledger
from services.gpuagent.processes import WorkerProcess
from services.gpuagent.worker.spec import ADDRESS_TAKEN, WorkerSpec
from services.kit import logs
from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.net import free_port, split_address

_log = logs.get("keeper")
_STEADY_S = 10.0

Probe = Callable[[str, str], Awaitable[None]]
"""Waits until a worker answers; called with its endpoint and its segment's id."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every keeper needs.

    Attributes:
        clock: Time.
        probe: Waits until a worker answers.
        changed: Called after each change of what a keeper would say.
    """

    clock: Clock
    probe: Probe
    changed: Callable[[], None]


@dataclass(slots=True, eq=False)
class Keeper:
    """One worker's supervisor.

    Attributes:
        spec: What the worker is told; its address changes only where somebody else took it.
        path: The spec file; the log lies beside it.
        ledger: Of the worker's GPU.
        environment: Added to the worker's.
        world: What every keeper needs.
        process: The worker, where an earlier agent started it.
        ready: It answers.
        was_ready: It answered once.
        restarts: Times it was started again.
    """

    spec: WorkerSpec
    path: Path
    ledger: Ledger
    environment: Mapping[str, str]
    world: Surroundings
    process: WorkerProcess | None = None
    ready: bool = False
    was_ready: bool = False
    restarts: int = 0
    _failure: str = ""
    _stopping: bool = False
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _spawning: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def log(self) -> Path:
        """Where the worker's log goes."""
        return self.path.with_suffix(".log")

    async def run(self) -> None:
        """Start the worker, and again whenever it ends, until `stop`."""
        backoff = Backoff()
        while not self._stopping:
            if self.process is None:
                await self._spawn()
            began_s = self.world.clock.monotonic()
            status = await self._watch()
            if self._stopping:
                return
            if status == ADDRESS_TAKEN:
                self._move()
                continue
            self._note_failure(status)
            if self.world.clock.monotonic() - began_s > _STEADY_S:
                backoff.reset()
            await self.world.clock.sleep(backoff.next_s())

    async def started(self) -> None:
        """Wait until the worker answers for the first time.

        Raises:
            FailedPrecondition: It ended before it did.
        """
        await self.settled()
        if not self.was_ready:
            raise FailedPrecondition(self._failure, reason="WORKER_ENDED")

    async def settled(self) -> None:
        """Wait until the worker answers, or has ended."""
        await self._known.wait()

    async def stop(self, grace_s: float) -> None:
        """Drain the worker, end it, and close its account; return when it has ended."""
        self._stopping = True
        async with self._spawning:
            process = self.process
        if process is not None:
            await process.end(grace_s)
        self.ready = False
        self.ledger.settle(self.spec.slot)
        for file in (self.path, self.log):
            file.unlink(missing_ok=True)

    async def _spawn(self) -> None:
        async with self._spawning:
            if not self._stopping:
                self.spec.save(self.path)
                try:
                    self.process = await asyncio.to_thread(
                        processes.start, self.path, self.log, self.environment
                    )
                except OSError as error:  # no memory, no more processes: try again later
                    _log.warning("cannot start a worker", error=str(error))

    async def _watch(self) -> int | None:
        """Announce when the worker answers; return its exit status when it has ended."""
        process = self.process
        if process is None:
            return None
        async with asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(self._announce(), name=f"probe {self.spec.listen}")
            await process.ended()
            announcing.cancel()
        self.ready, self.process = False, None
        self.ledger.settle(self.spec.slot)
        return process.exit_status

    async def _announce(self) -> None:
        await self.world.probe(self.spec.listen, self.spec.segment_id)
        self.ready = self.was_ready = True
        self._known.set()
        self.world.changed()

    def _move(self) -> None:
        host, _ = split_address(self.spec.listen)
        self.spec = replace(self.spec, listen=f"{host}:{free_port(host)}")
        _log.warning("a worker's address was taken", segment=self.spec.segment_id)
        self.world.changed()

    def _note_failure(self, status: int | None) -> None:
        ending = "ended" if status is None else f"ended with status {status}"
        words = processes.last_words(self.log)
        self._failure = f"worker {self.path.stem} {ending}: {words}"
        self._known.set()
        self.restarts += 1
        _log.warning("worker ended; starting it again", segment=self.spec.segment_id, status=status)
        self.world.changed()

"""Keeps one worker process alive, on the endpoint it was announced with.

One that ends, does not answer in time, or takes too much memory is started again, later each time;
one that fails too often is left alone until its segment is started again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from cinquefoil.gpuagent.v1.worker_pb2_grpc import WorkerServiceStub
from services.gpuagent.core.restart_policy import FailureHistory
from services.gpuagent.core.worker_spec import ADDRESS_TAKEN, WorkerSpec
from services.gpuagent.shared_memory.group_counters import Counters
from services.gpuagent.supervision import processes
from services.gpuagent.supervision.processes import WorkerProcess
from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.config import ServerRuntime, Workers
from services.kit.errors import FailedPrecondition
from services.kit.net import address_of, free_port, split_address
from services.kit.rpc import dial
from services.kit.telemetry import logs
from services.kit.units import BYTES_PER_MIB

_log = logs.get("supervisor")
_STEADY_S = 10.0
_MEMORY_PERIOD_S = 1.0
_RECYCLE_GRACE_S = 10.0
_START_TRIES = 2
"""Failures before its first answer after which callers that wait are notified: rollouts do."""

Probe = Callable[[str, str], Awaitable[pb.Hello]]
"""Waits until a worker answers, and returns its hello; called with endpoint and segment id."""


@dataclass(frozen=True, slots=True)
class SupervisionContext:
    """Dependencies common to all supervisors.

    Attributes:
        clock: Time.
        probe: Waits until a worker answers.
        changed: Called after each change of what a supervisor reports.
        limits: Limits of a worker's memory, load time and failures.
    """

    clock: Clock
    probe: Probe
    changed: Callable[[], None]
    limits: Workers = field(default_factory=Workers)


@dataclass(slots=True, eq=False)
class WorkerSupervisor:
    """One worker's supervisor.

    Attributes:
        spec: The worker's; its address changes only where another process took it.
        path: The spec file; the log lies beside it.
        counters: Of the worker's GPUs.
        environment: Added to the worker's.
        context: Dependencies common to all supervisors.
        process: The worker, where an earlier agent started it.
        ready: It answers.
        was_ready: It answered once.
        restarts: Times it was started again.
        hello: Its hello; empty before it first answered.
    """

    spec: WorkerSpec
    path: Path
    counters: Counters
    environment: Mapping[str, str]
    context: SupervisionContext
    process: WorkerProcess | None = None
    ready: bool = False
    was_ready: bool = False
    restarts: int = 0
    hello: pb.Hello = field(default_factory=pb.Hello)
    _verdict: str = ""
    _stopping: bool = False
    _paused: bool = False
    _excused: bool = False
    _failures: FailureHistory = field(init=False)
    _may_run: asyncio.Event = field(default_factory=asyncio.Event)
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _spawning: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._failures = FailureHistory(self.context.limits)
        self._may_run.set()

    @property
    def quarantined(self) -> bool:
        """It failed too often: only `retry` starts it again."""
        return self._failures.too_many

    @property
    def trouble(self) -> str:
        """Reason why it does not answer; "" where it does, or has not failed yet."""
        return "" if self.ready else self._failures.last

    @property
    def log(self) -> Path:
        """Where the worker's log goes."""
        return self.path.with_suffix(".log")

    async def run(self) -> None:
        """Start the worker, and again whenever it ends, until `stop`."""
        backoff = Backoff(initial_s=0.2, maximum_s=30.0)
        while not self._stopping:
            await self._may_run.wait()
            if self.process is None:
                await self._spawn()
                if self.process is None:  # not the worker's fault: tried until it starts
                    await self.context.clock.sleep(backoff.next_s())
                    continue
            began_s = self.context.clock.monotonic()
            status = await self._watch()
            if self._stopping:
                return
            if self._paused or self._excused:
                self._excused = False
                continue
            if status == ADDRESS_TAKEN:
                self._move()
                continue
            self._note_failure(status)
            if self.context.clock.monotonic() - began_s > _STEADY_S:
                backoff.reset()
            if not self.quarantined:
                await self.context.clock.sleep(backoff.next_s())

    async def started(self) -> None:
        """Wait until the worker answers for the first time.

        Raises:
            FailedPrecondition: It failed, and failed again, before it did.
        """
        await self.settled()
        if not self.was_ready:
            raise FailedPrecondition(self._failures.last, reason="WORKER_ENDED")

    async def settled(self) -> None:
        """Wait until the worker answers, or has failed as often as one waits for."""
        await self._known.wait()

    async def stop(self, grace_s: float) -> None:
        """Drain the worker, end it, and close its account; return when it has ended."""
        self._stopping = True
        self._failures.last = self.trouble or f"worker {self.path.stem} was stopped"
        self._known.set()
        self._may_run.set()
        async with self._spawning:
            process = self.process
        if process is not None:
            await process.end(grace_s)
        self.ready = False
        self.counters.settle(self.spec.slot)
        for file in (self.path, self.log):
            file.unlink(missing_ok=True)

    async def pause(self, grace_s: float) -> None:
        """Drain the worker and end it; it is not started again before `resume`."""
        self._paused = True
        self._decide()
        async with self._spawning:
            process = self.process
        if process is not None:
            self._excused = True
            await process.end(grace_s)

    def resume(self) -> None:
        """Start the worker again after a pause."""
        self._paused = False
        self._decide()

    def retry(self) -> None:
        """Try again with a worker that was given up."""
        self._failures.reset()
        self.was_ready = False
        self._known.clear()
        self._decide()

    def _decide(self) -> None:
        if self._paused or self.quarantined:
            self._may_run.clear()
        else:
            self._may_run.set()

    async def _spawn(self) -> None:
        async with self._spawning:
            if not (self._stopping or self._paused):
                try:
                    self.spec.save(self.path)
                    self.process = await asyncio.to_thread(
                        processes.start, self.path, self.log, self.environment
                    )
                except OSError as error:  # no memory, no more processes, no room on the disk
                    _log.warning("cannot start a worker", error=str(error))

    async def _watch(self) -> int | None:
        """Announce when the worker answers; return its exit status when it has ended."""
        process = self.process
        if process is None:
            return None
        async with asyncio.TaskGroup() as tasks:
            overseer = tasks.create_task(self._oversee(process), name=f"oversee {self.path.stem}")
            await process.ended()
            overseer.cancel()
        if isinstance(self.spec.runtime, ServerRuntime):
            process.sweep()
        self.ready, self.process = False, None
        self.counters.settle(self.spec.slot)
        return process.exit_status

    async def _oversee(self, process: WorkerProcess) -> None:
        """Announce when the worker answers; end it where it takes too much time or memory."""
        limits = self.context.limits
        try:
            async with asyncio.timeout(limits.load_timeout_s):
                self.hello = await self.context.probe(self.spec.listen, self.spec.segment_id)
        except TimeoutError:
            self._verdict = f"did not answer within {limits.load_timeout_s:g} s"
            await process.end(0.0)
            return
        self.ready = self.was_ready = True
        self._known.set()
        self.context.changed()
        if limits.memory_limit_mib is not None:
            await self._limit_memory(process, int(limits.memory_limit_mib * BYTES_PER_MIB))

    async def _limit_memory(self, process: WorkerProcess, limit_bytes: int) -> None:
        look = partial(process.memory_bytes, family=isinstance(self.spec.runtime, ServerRuntime))
        while (used_bytes := await asyncio.to_thread(look)) <= limit_bytes:
            await self.context.clock.sleep(_MEMORY_PERIOD_S)
        self._verdict = (
            f"took {used_bytes // BYTES_PER_MIB} MiB of memory, more than its "
            f"{limit_bytes // BYTES_PER_MIB} MiB"
        )
        self.ready = False
        self.context.changed()
        await process.end(_RECYCLE_GRACE_S)

    def _move(self) -> None:
        host, _ = split_address(self.spec.listen)
        self.spec = self.spec.model_copy(update={"listen": address_of(host, free_port(host))})
        _log.warning("a worker's address was taken", segment=self.spec.segment_id)
        self.context.changed()

    def _note_failure(self, status: int | None) -> None:
        ending = "ended" if status is None else f"ended with status {status}"
        what = self._verdict or f"{ending}: {processes.last_words(self.log)}"
        self._verdict = ""
        self._failures.note(self.context.clock.monotonic(), f"worker {self.path.stem} {what}")
        self._decide()
        if self.quarantined or (not self.was_ready and self._failures.count >= _START_TRIES):
            self._known.set()
        self.restarts += not self.quarantined
        _log.warning(
            "worker failed",
            segment=self.spec.segment_id,
            why=self._failures.last,
            quarantined=self.quarantined,
        )
        self.context.changed()


_ATTEMPT_S: Final = 5.0
_PAUSE_S: Final = 0.05


async def answers(
    endpoint: str,
    segment_id: str,
    open_channel: Callable[[str], grpc.aio.Channel] = dial,
) -> pb.Hello:
    """Wait until a worker of the segment says hello at `endpoint`; return its hello."""
    async with open_channel(endpoint) as channel:
        while True:
            with suppress(grpc.aio.AioRpcError):
                call = WorkerServiceStub(channel).Execute(wait_for_ready=True, timeout=_ATTEMPT_S)
                first = await call.read()
                call.cancel()
                if isinstance(first, pb.ExecuteResponse) and first.hello.segment_id == segment_id:
                    return first.hello
            await asyncio.sleep(_PAUSE_S)

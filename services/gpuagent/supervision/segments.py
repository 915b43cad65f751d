"""The segments of a node: started, kept alive, adopted after a crash, stopped."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec, SegmentState
from cinquefoil.gpuagent.v1.worker_pb2 import Hello
from services.gpuagent.core.model import Segment
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.core.worker_slot import Slot
from services.gpuagent.state_store import Store
from services.gpuagent.supervision import processes
from services.gpuagent.supervision.journal import Journal
from services.gpuagent.supervision.processes import WorkerProcess
from services.gpuagent.supervision.slice_sharing import SliceSharing
from services.gpuagent.supervision.worker_allocation import WorkerAllocator
from services.gpuagent.supervision.worker_supervisor import SupervisionContext, WorkerSupervisor
from services.kit.errors import AlreadyExists, FailedPrecondition, ServiceError, Unavailable
from services.kit.segment import gpus_of
from services.kit.telemetry import logs


@dataclass(slots=True, eq=False)
class RunningSegment:
    """A segment with its workers' supervisors."""

    config: WorkerConfig
    supervisors: tuple[WorkerSupervisor, ...]
    tasks: tuple[asyncio.Task[None], ...]
    draining: bool = False

    @property
    def spec(self) -> SegmentSpec:
        """The requested spec."""
        return self.config.spec

    def reported(self) -> Segment:
        """Return the segment as reported."""
        return Segment(
            self.spec,
            self._state(),
            tuple(supervisor.spec.listen for supervisor in self.supervisors),
            sum(supervisor.restarts for supervisor in self.supervisors),
            next(filter(None, (supervisor.trouble for supervisor in self.supervisors)), ""),
            self.hello.execution_provider,
            self.hello.max_batch,
            self.hello.alone_reason,
        )

    @property
    def hello(self) -> Hello:
        """The hello of its first worker; empty before that answered."""
        return self.supervisors[0].hello

    def slots(self) -> tuple[Slot, ...]:
        """Return the slots of its workers."""
        return tuple(each.counters.slot(each.spec.slot) for each in self.supervisors)

    def _state(self) -> SegmentState:
        if self.draining:
            return SegmentState.DRAINING
        if all(supervisor.ready for supervisor in self.supervisors):
            return SegmentState.READY
        if all(supervisor.quarantined for supervisor in self.supervisors):
            return SegmentState.QUARANTINED
        if all(supervisor.was_ready or supervisor.quarantined for supervisor in self.supervisors):
            return SegmentState.DEGRADED
        return SegmentState.STARTING


_log = logs.get("segments")

START_TIMEOUT_S: Final = 60.0
ADOPT_TIMEOUT_S: Final = 5.0
STRAY_GRACE_S: Final = 5.0
PAUSE_GRACE_S: Final = 5.0
_LOOK_S: Final = 0.02


@dataclass(slots=True, eq=False)
class Segments:
    """Every segment of the node.

    Attributes:
        allocator: Gives workers their addresses and slots.
        journal: Remembers segments over a crash.
        context: For the supervisors.
        tasks: Owns the supervisors' tasks.
        sharing: How the processes of a segment share their slice.
    """

    allocator: WorkerAllocator
    journal: Store[Journal]
    context: SupervisionContext
    tasks: asyncio.TaskGroup
    sharing: SliceSharing = field(default_factory=SliceSharing)
    _running: dict[str, RunningSegment] = field(default_factory=dict)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closing: bool = False

    # ---- what is -------------------------------------------------------------------------------

    def list(self) -> tuple[Segment, ...]:
        """Return the segments, in order of their start."""
        return tuple(running.reported() for running in self._running.values())

    @property
    def running(self) -> tuple[RunningSegment, ...]:
        """The segments, in order of their start."""
        return tuple(self._running.values())

    def on(self, gpu_uuid: str) -> tuple[RunningSegment, ...]:
        """Return the segments on one GPU, those that hold others too among them."""
        return tuple(r for r in self._running.values() if gpu_uuid in gpus_of(r.spec))

    def at(self, gpu_uuid: str, placement: Placement) -> tuple[SegmentSpec, ...]:
        """Return the segments on a slice, the oldest first."""
        return tuple(r.spec for r in self.on(gpu_uuid) if r.spec.placement == placement)

    # ---- changes -------------------------------------------------------------------------------

    async def begin(self, config: WorkerConfig) -> RunningSegment:
        """Start a segment's workers; those of a segment that runs already are left alone.

        Workers that were given up are tried again.

        Returns:
            The segment; `wait` for it to answer.

        Raises:
            AlreadyExists: The id is another segment's.
            FailedPrecondition: It is being stopped, or its slice is taken by another model's, or
                by two.
            ResourceExhausted: The GPU's ledger has no free slots.
            Unavailable: The agent is stopping.
        """
        self._check_open()
        spec = config.spec
        known = self._running.get(spec.segment_id)
        if known is not None:
            if known.spec != spec:
                raise AlreadyExists(f"segment {spec.segment_id} runs, and is another: {known.spec}")
            if known.draining:
                raise FailedPrecondition(f"segment {spec.segment_id} is being stopped")
            for supervisor in known.supervisors:
                if supervisor.quarantined:
                    supervisor.retry()
            return known
        self._check_room(spec)
        await self.sharing.host(config)
        try:
            await self._remember(spec)
            self._check_open()  # `stop_all` may have come and gone since
            return self._launch(config, {})
        except (OSError, ServiceError):
            await self.sharing.leave(config)
            raise

    def _check_open(self) -> None:
        if self._closing:
            raise Unavailable("this agent is stopping")

    def _check_room(self, spec: SegmentSpec) -> None:
        """Make sure that a slice takes one more segment: the first, or a successor.

        A variant's successor starts beside it and takes over (make before break). The planner
        has made sure that both fit.
        """
        for uuid in gpus_of(spec):
            here = self.at(uuid, spec.placement)
            if len(here) > 1 or any(each.model != spec.model for each in here):
                occupants = ", ".join(each.segment_id for each in here)
                raise FailedPrecondition(
                    f"{spec.placement} of {uuid} is taken by segment {occupants}",
                    reason="SLICE_TAKEN",
                )

    async def wait(self, running: RunningSegment, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every worker answers; a segment that fails to start is stopped again.

        Raises:
            FailedPrecondition: A worker ended before it answered.
            Unavailable: One did not answer in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                for supervisor in running.supervisors:
                    await supervisor.started()
        except TimeoutError:
            await self.stop(running.spec.segment_id, 0.0)
            raise Unavailable(f"no answer from every worker within {timeout_s} s") from None
        except ServiceError:
            await self.stop(running.spec.segment_id, 0.0)
            raise

    async def answers(self, running: RunningSegment, timeout_s: float) -> bool:
        """Wait until every worker answers, failures on the way included; return whether all do."""
        waiting = (SegmentState.STARTING, SegmentState.DEGRADED)
        try:
            async with asyncio.timeout(timeout_s):
                while running.reported().state in waiting:  # noqa: ASYNC110 - a retry sets no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return False
        return running.reported().state is SegmentState.READY

    async def stop(self, segment_id: str, grace_s: float) -> None:
        """Drain a segment's workers, end them, forget it; one that does not run is no error."""
        running = self._running.get(segment_id)
        if running is None:
            return
        running.draining = True
        self.context.changed()
        async with asyncio.TaskGroup() as tasks:
            for supervisor in running.supervisors:
                tasks.create_task(supervisor.stop(grace_s), name=f"stop {supervisor.path.stem}")
        for task in running.tasks:
            task.cancel()
        self._running.pop(segment_id, None)
        await self.sharing.leave(running.config)
        await self._forget_ended()
        self.context.changed()

    async def stop_all(self, grace_s: float) -> None:
        """Stop every segment, and begin no more."""
        self._closing = True
        await self.stop_each(self.running, grace_s)

    async def stop_each(self, segments: Iterable[RunningSegment], grace_s: float) -> None:
        """Stop several segments at the same time."""
        async with asyncio.TaskGroup() as tasks:
            for segment_id in [each.spec.segment_id for each in segments]:
                tasks.create_task(self.stop(segment_id, grace_s), name=f"stop {segment_id}")

    def abandon(self) -> None:
        """Leave the workers to the next agent, which adopts them; begin no more segments."""
        self._closing = True
        for running in self._running.values():
            for task in running.tasks:
                task.cancel()

    async def adopt(self, build: Callable[[SegmentSpec], Awaitable[WorkerConfig]]) -> None:
        """Adopt the segments that an agent before this one left, according to its journal.

        Workers that run are kept, those that do not are started; segments that cannot be any more
        (their slice is gone) are dropped, and workers that no entry knows are ended.

        Args:
            build: Gives the configuration of a segment's workers, or raises ServiceError.
        """
        found = await asyncio.to_thread(processes.running, self.allocator.folder)
        adopted: set[Path] = set()
        journalled = await asyncio.to_thread(self.journal.load) or Journal(())
        for spec in journalled.segments:
            try:
                config = await build(spec)
                await self.sharing.host(config, partial(self._end_found, spec, found))
                running = self._launch(config, found)
            except ServiceError as error:
                _log.warning("dropped a segment", segment=spec.segment_id, error=error.message)
            else:
                adopted |= {
                    supervisor.path for supervisor in running.supervisors if supervisor.process
                }
        for path in found.keys() - adopted:
            _log.warning("ending a worker of no known segment", spec=path.name)
        await _end({path: found[path] for path in found.keys() - adopted})
        await self.sharing.sweep()
        self.allocator.settle(self._used_slots())
        if tuple(running.spec for running in self._running.values()) != journalled.segments:
            await self._forget_ended()
        await self._wait_for_adopted()

    async def rest(self, slice_uuid: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` while no worker runs on a slice: they drain before, and start again after."""
        paused = [
            supervisor
            for running in self._running.values()
            if running.config.worker.slice_uuid == slice_uuid
            for supervisor in running.supervisors
        ]
        async with asyncio.TaskGroup() as tasks:
            for each in paused:
                tasks.create_task(each.pause(PAUSE_GRACE_S), name=f"pause {each.path.stem}")
        try:
            await work()
        finally:
            for each in paused:
                each.resume()

    def _launch(self, config: WorkerConfig, found: Mapping[Path, WorkerProcess]) -> RunningSegment:
        supervisors = tuple(
            WorkerSupervisor(
                allocation.spec,
                allocation.path,
                self.allocator.counters(config.spec),
                environment,
                self.context,
                found.get(allocation.path) if allocation.kept else None,
            )
            for allocation, environment in zip(
                self.allocator.of(config, self._used_slots()),
                self.sharing.environments(config),
                strict=True,
            )
        )
        tasks = tuple(
            self.tasks.create_task(supervisor.run(), name=f"supervisor {supervisor.path.stem}")
            for supervisor in supervisors
        )
        running = RunningSegment(config, supervisors, tasks)
        self._running[config.spec.segment_id] = running
        return running

    def _used_slots(self) -> frozenset[tuple[str, int]]:
        return frozenset(
            (uuid, supervisor.spec.slot)
            for running in self._running.values()
            for supervisor in running.supervisors
            for uuid in gpus_of(running.spec)
        )

    async def _wait_for_adopted(self) -> None:
        """Wait for running workers to answer, so that the first report says READY for those."""
        try:
            async with asyncio.timeout(ADOPT_TIMEOUT_S):
                for running in self._running.values():
                    for supervisor in running.supervisors:
                        await supervisor.settled()
        except TimeoutError:
            _log.warning("adopted workers are slow to answer")

    async def _end_found(self, spec: SegmentSpec, found: dict[Path, WorkerProcess]) -> None:
        """End the workers of a segment that an agent before this one left."""
        ours = [each for each in found if each.stem.rpartition(".")[0] == spec.segment_id]
        await _end({path: found.pop(path) for path in ours})

    async def _forget_ended(self) -> None:
        """Write the journal without what has ended; a disk that is full keeps the longer one.

        The next agent starts what is in it, and the planner stops what it did not order.
        """
        try:
            await self._remember()
        except Unavailable as error:
            _log.warning("the journal has segments that ended", why=error.message)

    async def _remember(self, *beginning: SegmentSpec) -> None:
        async with self._writing:  # or an older list could overwrite a newer one
            specs = (*(running.spec for running in self._running.values()), *beginning)
            await asyncio.to_thread(self.journal.save, Journal(specs))


async def _end(workers: Mapping[Path, WorkerProcess]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for path, process in workers.items():
            tasks.create_task(process.end(STRAY_GRACE_S), name=f"end {path.stem}")

"""Sharing of slices between the processes of a segment, by MPS."""

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cinquefoil.gpuagent.v1.records import MpsLimit
from services.gpuagent.core.mps_limits import ceiling_of, limits_of
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.devices.mps.control_program import MpsDaemon, daemons
from services.kit.clock import Clock, RealClock
from services.kit.config import Mps
from services.kit.errors import ServiceError, Unavailable
from services.kit.telemetry import logs

_log = logs.get("mps")

_CHECKS: Final = 2
"""Checks in a row that a daemon may miss."""

_DEVICES: Final = "CUDA_VISIBLE_DEVICES"

Clear = Callable[[], Awaitable[None]]

Rest = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs some work while no worker runs on a slice, given by UUID."""


@dataclass(slots=True, eq=False)
class _DaemonInUse:
    """A daemon in use. Attributes: daemon, ceiling, segments (ids), missed (checks in a row)."""

    daemon: MpsDaemon
    ceiling: MpsLimit
    segments: set[str] = field(default_factory=set)
    missed: int = 0


@dataclass(slots=True, eq=False)
class SliceSharing:
    """One control daemon for each slice on which several processes run; none without MPS.

    It starts before its first client, and ends after its last. One that does not answer is
    restarted; its clients would hang on it, so they are ended first and start again after.

    Attributes:
        clock: Time.
        folder: Where daemons' files go; one agent's.
        mps: How daemons are run; None: processes share nothing but their slice.
        restarts: How often a daemon was started again, by slice UUID.
    """

    clock: Clock = field(default_factory=RealClock)
    folder: Path = Path()
    mps: Mps | None = None
    restarts: Counter[str] = field(default_factory=Counter)
    _in_use: dict[str, _DaemonInUse] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )

    def environments(self, config: WorkerConfig) -> tuple[Mapping[str, str], ...]:
        """Return each process's environment: a client's, without devices, or as it was."""
        if self.mps is None or not _shared(config):
            return (config.environment,) * config.spec.processes
        daemon = self._daemon(self.mps, config.worker.slice_uuid)
        common = {key: word for key, word in config.environment.items() if key != _DEVICES}
        limits = limits_of(config.spec)
        return tuple({**common, **daemon.environment(limit)} for limit in limits)

    async def host(self, config: WorkerConfig, clear: Clear | None = None) -> None:
        """Make sure that the segment's daemon runs; one of an earlier agent is kept.

        Args:
            config: The segment's.
            clear: Ends processes of the segment that run already, where any may: where there is no
                daemon, they are clients of one that is gone.

        Raises:
            FailedPrecondition: There is no MPS here.
            Unavailable: The daemon does not answer.
        """
        if self.mps is None or not _shared(config):
            return
        uuid, ceiling = config.worker.slice_uuid, ceiling_of(limits_of(config.spec))
        async with self._locks[uuid]:
            used = self._in_use.get(uuid) or _DaemonInUse(self._daemon(self.mps, uuid), ceiling)
            try:
                await used.daemon.check()
            except Unavailable:
                if clear is not None:
                    await clear()
                await used.daemon.start(ceiling)
            used.segments.add(config.spec.segment_id)
            self._in_use[uuid] = used

    async def leave(self, config: WorkerConfig) -> None:
        """End the slice's daemon with its last segment."""
        if self.mps is None or not _shared(config):
            return
        uuid = config.worker.slice_uuid
        async with self._locks[uuid]:
            used = self._in_use.get(uuid)
            if used is None:
                return
            used.segments.discard(config.spec.segment_id)
            if not used.segments:
                del self._in_use[uuid]
                await used.daemon.stop()

    async def sweep(self) -> None:
        """End daemons that an agent before this one left and no segment needs."""
        if self.mps is None:
            return
        program, timeout_s = self.mps.control_binary, self.mps.timeout_s
        found = await asyncio.to_thread(daemons, program.name, self.folder)
        ours = {used.daemon.folder for used in self._in_use.values()}
        for folder in {pipes.parent for pipes in found} - ours:
            _log.warning("ending an MPS control daemon that no segment uses", folder=folder.name)
            await MpsDaemon(program, timeout_s, "", folder).stop()

    async def run(self, rest: Rest) -> None:
        """Check the daemons until cancelled.

        Args:
            rest: Runs a restart while no worker runs on a slice.
        """
        while self.mps is not None:
            await self.clock.sleep(self.mps.check_interval_s)
            async with asyncio.TaskGroup() as tasks:
                for uuid in tuple(self._in_use):
                    tasks.create_task(self._look_after(uuid, rest), name=f"mps {uuid}")

    async def _look_after(self, uuid: str, rest: Rest) -> None:
        used = self._in_use.get(uuid)
        if used is None:
            return
        try:
            await used.daemon.check()
            used.missed = 0
        except ServiceError as error:
            used.missed += 1
            _log.warning("MPS does not answer", device=uuid, error=error.message)
            if used.missed >= _CHECKS:
                await rest(uuid, lambda: self._restart(uuid))

    async def _restart(self, uuid: str) -> None:
        async with self._locks[uuid]:
            used = self._in_use.get(uuid)
            if used is None:
                return
            try:
                await used.daemon.stop()
                await used.daemon.start(used.ceiling)
                used.missed = 0
                self.restarts[uuid] += 1
            except ServiceError as error:
                _log.error("cannot restart MPS", device=uuid, error=error.message)

    def _daemon(self, mps: Mps, slice_uuid: str) -> MpsDaemon:
        # Short, for the path of a Unix socket is.
        name = hashlib.sha256(slice_uuid.encode()).hexdigest()[:10]
        return MpsDaemon(mps.control_binary, mps.timeout_s, slice_uuid, self.folder / name)


def _shared(config: WorkerConfig) -> bool:
    return config.spec.processes > 1 or bool(config.spec.limits)

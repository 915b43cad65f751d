"""How the processes of a segment share their slice: through MPS, or not at all."""

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.gpuagent.core.mps_limits import ceiling_of, limits_of
from services.gpuagent.core.worker_config import WorkerConfig
from services.gpuagent.devices.mps.control_program import LegacyMps, MpsDaemon
from services.kit.clock import Clock
from services.kit.errors import ServiceError, Unavailable
from services.kit.segment import MpsLimit
from services.kit.telemetry import logs

_log = logs.get("mps")

_CHECKS: Final = 2
"""Checks in a row that a daemon may miss."""

_DEVICES: Final = "CUDA_VISIBLE_DEVICES"

Clear = Callable[[], Awaitable[None]]

Rest = Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs some work while no worker runs on a slice, given by UUID."""


class SliceSharing:
    """Processes of a segment that share nothing but their slice.

    Attributes:
        restarts: How often what is shared was started again, by slice UUID.
    """

    def __init__(self) -> None:
        self.restarts: Counter[str] = Counter()

    def environments(self, config: WorkerConfig) -> tuple[Mapping[str, str], ...]:
        """Return each process's environment."""
        return (config.environment,) * config.spec.processes

    async def host(self, config: WorkerConfig, clear: Clear) -> None:
        """Make ready for a segment.

        Args:
            config: The segment's.
            clear: Ends processes of the segment that run already; they would be lost anyway.

        Raises:
            ServiceError: Its processes cannot share the slice.
        """

    async def leave(self, config: WorkerConfig) -> None:
        """Note that a segment's last process has ended."""

    async def sweep(self) -> None:
        """End what an agent before this one left and no segment needs."""

    async def run(self, rest: Rest) -> None:
        """Look after what is shared until cancelled.

        Args:
            rest: Runs a repair while no worker runs on a slice.
        """


@dataclass(slots=True, eq=False)
class _DaemonInUse:
    """A daemon in use. Attributes: daemon, ceiling, segments (ids), missed (checks in a row)."""

    daemon: MpsDaemon
    ceiling: MpsLimit
    segments: set[str] = field(default_factory=set)
    missed: int = 0


class MpsSharing(SliceSharing):
    """One control daemon for each slice on which several processes run.

    It starts before its first client, and ends after its last. One that does not answer is
    restarted; its clients would hang on it, so they are ended first and start again after.

    Args:
        driver: Speaks to daemons.
        folder: Where their files go; one agent's.
        clock: Time.
        check_interval_s: How often they are checked, s.
    """

    def __init__(
        self, driver: LegacyMps, folder: Path, clock: Clock, check_interval_s: float
    ) -> None:
        super().__init__()
        self._driver = driver
        self._folder = folder
        self._clock = clock
        self._check_interval_s = check_interval_s
        self._in_use: dict[str, _DaemonInUse] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def environments(self, config: WorkerConfig) -> tuple[Mapping[str, str], ...]:
        """Return each process's environment: a client's, without devices, or as it was."""
        if not _shared(config):
            return (config.environment,)
        daemon = self._daemon(config.slice_uuid)
        common = {key: word for key, word in config.environment.items() if key != _DEVICES}
        limits = limits_of(config.spec)
        return tuple({**common, **self._driver.environment(daemon, limit)} for limit in limits)

    async def host(self, config: WorkerConfig, clear: Clear) -> None:
        """Make sure that the segment's daemon runs; one of an earlier agent is kept.

        Where there is none, processes on the slice are clients of one that is gone.

        Raises:
            FailedPrecondition: There is no MPS here.
            Unavailable: The daemon does not answer.
        """
        if not _shared(config):
            return
        uuid, ceiling = config.slice_uuid, ceiling_of(limits_of(config.spec))
        async with self._locks[uuid]:
            used = self._in_use.get(uuid) or _DaemonInUse(self._daemon(uuid), ceiling)
            try:
                await self._driver.check(used.daemon)
            except Unavailable:
                await clear()
                await self._driver.start(used.daemon, ceiling)
            used.segments.add(config.spec.segment_id)
            self._in_use[uuid] = used

    async def leave(self, config: WorkerConfig) -> None:
        """End the slice's daemon with its last segment."""
        uuid = config.slice_uuid
        async with self._locks[uuid]:
            used = self._in_use.get(uuid)
            if used is None:
                return
            used.segments.discard(config.spec.segment_id)
            if not used.segments:
                del self._in_use[uuid]
                await self._driver.stop(used.daemon)

    async def sweep(self) -> None:
        """End daemons that an agent before this one left and no segment needs."""
        ours = {used.daemon.folder for used in self._in_use.values()}
        for folder in await self._driver.running(self._folder) - ours:
            _log.warning("ending an MPS control daemon that no segment uses", folder=folder.name)
            await self._driver.stop(MpsDaemon("", folder))

    async def run(self, rest: Rest) -> None:
        """Check the daemons for ever; see `SliceSharing.run`."""
        while True:
            await self._clock.sleep(self._check_interval_s)
            async with asyncio.TaskGroup() as tasks:
                for uuid in tuple(self._in_use):
                    tasks.create_task(self._look_after(uuid, rest), name=f"mps {uuid}")

    async def _look_after(self, uuid: str, rest: Rest) -> None:
        used = self._in_use.get(uuid)
        if used is None:
            return
        try:
            await self._driver.check(used.daemon)
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
                await self._driver.stop(used.daemon)
                await self._driver.start(used.daemon, used.ceiling)
                used.missed = 0
                self.restarts[uuid] += 1
            except ServiceError as error:
                _log.error("cannot restart MPS", device=uuid, error=error.message)

    def _daemon(self, slice_uuid: str) -> MpsDaemon:
        # Short, for the path of a Unix socket is.
        name = hashlib.sha256(slice_uuid.encode()).hexdigest()[:10]
        return MpsDaemon(slice_uuid, self._folder / name)


def _shared(config: WorkerConfig) -> bool:
    return config.spec.processes > 1 or bool(config.spec.limits)

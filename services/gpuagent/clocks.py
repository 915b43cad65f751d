"""SM clocks that plans hold: a clock belongs to a whole GPU, and to all its segments alike."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from services.gpuagent.device import NvmlGpus
from services.gpuagent.device_thread import DeviceThread
from services.gpuagent.domain import ClockState, LockClock
from services.gpuagent.files import read_json, write_json
from services.kit import logs
from services.kit.errors import PermissionDenied, ServiceError

_log = logs.get("clocks")

VERSION: Final = 1


class Clocks:
    """Holds clocks, and knows over a crash which ones it held.

    A clock is on disk as held before the driver is asked to hold it, so that an agent that comes
    back gives back no less than what its predecessor took.

    Args:
        device: The GPUs.
        path: Where it is written down.
        allowed: It may hold clocks at all.
    """

    def __init__(self, device: DeviceThread, path: Path, *, allowed: bool) -> None:
        self._device = device
        self._path = path
        self._allowed = allowed
        self._held_mhz: dict[str, int] = {}

    @property
    def state(self) -> ClockState:
        """What is held."""
        return ClockState(self._allowed, dict(self._held_mhz))

    async def restore(self) -> None:
        """Hold again what was held when the agent ended.

        A GPU that cannot be held any more is given back: the planner then sees it and decides.

        Raises:
            FailedPrecondition: The file is damaged.
        """
        data = await asyncio.to_thread(read_json, self._path, version=VERSION)
        for gpu_uuid, clock_mhz in (data["held_mhz"] if data else {}).items():
            try:
                await self.hold(LockClock(gpu_uuid, clock_mhz))
            except ServiceError as error:
                _log.warning("clock is not held any more", gpu=gpu_uuid, error=error.message)
                await self._write(gpu_uuid, 0)

    async def hold(self, action: LockClock) -> None:
        """Hold a clock, or give it back.

        Raises:
            PermissionDenied: The agent may not hold clocks, or not touch this GPU.
            InvalidArgument: The clock is outside the supported range.
            FailedPrecondition: The GPU cannot lock its clock.
        """
        if not self._allowed:
            raise PermissionDenied(
                "this agent may not hold clocks: nodes.<name>.allow_clocks is off",
                reason="CLOCKS_NOT_ALLOWED",
            )
        before_mhz = self._held_mhz.get(action.gpu_uuid, 0)
        await self._write(action.gpu_uuid, action.clock_mhz or before_mhz)
        try:
            await self._tell(action)
        except ServiceError:
            await self._write(action.gpu_uuid, before_mhz)
            raise
        await self._write(action.gpu_uuid, action.clock_mhz)

    async def release(self) -> None:
        """Give every clock back, as the agent does when it ends."""
        for gpu_uuid in list(self._held_mhz):
            try:
                await self.hold(LockClock(gpu_uuid, 0))
            except ServiceError as error:
                _log.warning("clock could not be given back", gpu=gpu_uuid, error=error.message)

    async def _tell(self, action: LockClock) -> None:
        if action.clock_mhz:
            await self._device.call(NvmlGpus.lock_clock, action.gpu_uuid, action.clock_mhz)
        else:
            await self._device.call(NvmlGpus.reset_clock, action.gpu_uuid)

    async def _write(self, gpu_uuid: str, clock_mhz: int) -> None:
        if self._held_mhz.get(gpu_uuid, 0) == clock_mhz:
            return
        if clock_mhz:
            self._held_mhz[gpu_uuid] = clock_mhz
        else:
            del self._held_mhz[gpu_uuid]
        data = {"version": VERSION, "held_mhz": dict(self._held_mhz)}
        await asyncio.to_thread(write_json, self._path, data)

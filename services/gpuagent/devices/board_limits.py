"""Power limits of boards: set for a power budget, and given back."""

import asyncio
from pathlib import Path
from typing import Any, Final

from services.gpuagent.core.device_port import PowerLimits
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import FailedPrecondition, PermissionDenied, ServiceError
from services.kit.state_file import Damaged, read_parsed, set_aside, write_json
from services.kit.telemetry import logs

_log = logs.get("power_limits")

VERSION: Final = 1


class BoardLimits:
    """Sets power limits, and remembers over a crash what they were before.

    Args:
        device: The GPUs.
        path: File with the limits before, by GPU.
        allowed: Whether limits may be set at all.
    """

    def __init__(self, device: DeviceThread, path: Path, *, allowed: bool) -> None:
        self._device, self._path, self._allowed = device, path, allowed
        self._before_w: dict[str, float] = {}

    async def read(self, gpu_uuid: str) -> PowerLimits:
        """Return a board's power limit and its constraints.

        Raises:
            PermissionDenied: Limits may not be set.
            FailedPrecondition: The board has none.
            ServiceError: The driver does not answer.
        """
        if not self._allowed:
            raise PermissionDenied("nodes.<name>.allow_power_limits is off")
        return await self._device.call(lambda d: _nvml(d).power_limits_w(gpu_uuid))

    async def set(self, gpu_uuid: str, limit_w: float) -> float:
        """Set a power limit within the board's constraints; return what the board then has, W.

        Raises:
            ServiceError: As for `read`; the limit is as before.
        """
        if gpu_uuid not in self._before_w:
            self._before_w[gpu_uuid] = (await self.read(gpu_uuid)).now_w
            try:
                await self._save()
            except ServiceError:
                del self._before_w[gpu_uuid]
                raise
        return await self._device.call(lambda d: _nvml(d).limit_power(gpu_uuid, limit_w))

    async def restore(self) -> None:
        """Give back what an agent before this one had set.

        Raises:
            Unavailable: The file cannot be read, or not be set aside.
        """
        try:
            noted = await asyncio.to_thread(read_parsed, self._path, _parsed, version=VERSION)
        except Damaged as damage:
            await asyncio.to_thread(set_aside, self._path, damage.message)
            return
        self._before_w = noted or {}
        await self.release()

    async def release(self) -> None:
        """Give every power limit back; what the driver refuses is tried again by the next agent."""
        for gpu_uuid, before_w in tuple(self._before_w.items()):
            await self._give_back(gpu_uuid, before_w)

    async def _give_back(self, gpu_uuid: str, before_w: float) -> None:
        try:
            await self._device.call(lambda d: _nvml(d).limit_power(gpu_uuid, before_w))
            del self._before_w[gpu_uuid]
            await self._save()
        except ServiceError as error:
            _log.warning("power limit is not given back", gpu=gpu_uuid, error=error.message)

    async def _save(self) -> None:
        data = {"version": VERSION, "before_w": dict(self._before_w)}
        await asyncio.to_thread(write_json, self._path, data)


def _nvml(devices: object) -> NvmlGpus:
    """Return devices that have power limits.

    Raises:
        FailedPrecondition: They have none: CPU cores, or another maker's.
    """
    if not isinstance(devices, NvmlGpus):
        raise FailedPrecondition("only GPUs behind NVML have power limits")
    return devices


def _parsed(data: dict[str, Any]) -> dict[str, float]:
    return {str(uuid): float(limit_w) for uuid, limit_w in data.get("before_w", {}).items()}

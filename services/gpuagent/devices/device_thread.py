"""A node's devices, off the event loop: drivers' calls block, and all come from one thread."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self, TypeVar

from services.gpuagent.core.gpu_info import GpuReading
from services.gpuagent.devices.amd_gpus import AmdGpus
from services.gpuagent.devices.cpu.cores import CpuCores
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import ServiceError

Devices = NvmlGpus | AmdGpus | CpuCores
"""The devices of one node, by UUID; `NvmlGpus` documents the methods and their errors."""

_READING_S: Final = 2.0
"""Maximum wait of a scrape for a driver."""

Result = TypeVar("Result")


class DeviceThread:
    """Runs calls on the devices in one thread. An async context manager: drivers live inside."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._thread = ThreadPoolExecutor(1, "devices")

    async def __aenter__(self) -> Self:
        await self.call(lambda d: d.__enter__())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call(lambda d: d.__exit__())
        self._thread.shutdown()

    async def call(self, work: Callable[[Devices], Result]) -> Result:
        """Work on the devices, for example `call(lambda d: d.create_slice(uuid, placement))`.

        Raises:
            ServiceError: As the work does.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, self._devices)

    def refused(self) -> Mapping[str, Mapping[str, str]]:
        """Return the queries that drivers refused lately, by device; from any thread, at once."""
        return self._devices.refused()

    def readings(self) -> tuple[GpuReading, ...]:
        """Return what the devices are now; from any thread but theirs. Nothing where they fail."""
        try:
            return self._thread.submit(self._devices.readings).result(_READING_S)
        except (ServiceError, TimeoutError, RuntimeError):  # the last: this has ended
            return ()

"""The node's energy accounts, kept up to date for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from services.gpuagent.device import MeterReading, NvmlGpus
from services.gpuagent.device_thread import DeviceThread
from services.gpuagent.energy import Account
from services.gpuagent.metering import GpuMeter
from services.gpuagent.segments import Segments
from services.kit import logs
from services.kit.clock import Clock
from services.kit.errors import ServiceError

_log = logs.get("accounts")

PERIOD_S: Final = 0.5


class Accounts:
    """Every GPU's account.

    Args:
        meters: By GPU, in order of index.
        device: The GPUs.
        segments: What runs on them.
        clock: Time.
        changed: Called after each reading.
    """

    def __init__(
        self,
        meters: Mapping[str, GpuMeter],
        device: DeviceThread,
        segments: Segments,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._meters = meters
        self._device = device
        self._segments = segments
        self._clock = clock
        self._changed = changed
        self._reading = asyncio.Lock()

    def list(self) -> dict[str, Account]:
        """Return the accounts by GPU, in order of index."""
        return {uuid: meter.account for uuid, meter in self._meters.items()}

    async def run(self) -> None:
        """Read the meters for ever."""
        while True:
            await self.read()
            await self._clock.sleep(PERIOD_S)

    async def read(self) -> None:
        """Read every meter once; a GPU that cannot be read now is read the next time."""
        async with self._reading:  # an older reading must not come after a newer one
            for uuid, meter in self._meters.items():
                try:
                    reading, at_s = await self._device.call(_meter, uuid)
                except ServiceError as error:
                    _log.warning("cannot read the meter", gpu=uuid, error=error.message)
                else:
                    meter.read(reading, at_s, self._segments.on(uuid))
                    await asyncio.to_thread(meter.save)
        self._changed()


def _meter(gpus: NvmlGpus, uuid: str) -> tuple[MeterReading, float]:
    """Return a GPU's meter and when it was read: idle energy is a matter of milliseconds."""
    return gpus.meter(uuid), time.monotonic()

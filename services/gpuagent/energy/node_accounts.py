"""The node's energy accounts, kept up to date."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from services.gpuagent.core.device_port import NO_METER, MeterReading
from services.gpuagent.devices.device_thread import Devices, DeviceThread
from services.gpuagent.energy.core.account import Account
from services.gpuagent.energy.metering import GpuMeter
from services.gpuagent.supervision.segments import Segments
from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs

_log = logs.get("accounts")

PERIOD_S: Final = 0.5


class NodeAccounts:
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
        self._troubles: dict[str, str] = {}
        self._unsaved: dict[str, str] = {}

    def list(self) -> dict[str, Account]:
        """Return the accounts by GPU, in order of index."""
        return {uuid: meter.account for uuid, meter in self._meters.items()}

    @property
    def unsaved(self) -> str:
        """Why accounts are kept in memory only; "": they are on disk."""
        return next(filter(None, self._unsaved.values()), "")

    async def run(self) -> None:
        """Read the meters until cancelled."""
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
                    self._note(uuid, error.message)
                else:
                    self._note(uuid, "it has none: energy is modelled" if reading is None else "")
                    meter.read(reading, at_s, self._segments.on(uuid))
                    await self._save(uuid, meter)
        self._changed()

    async def _save(self, uuid: str, meter: GpuMeter) -> None:
        """Write an account; where the disk does not take it, the next one has all of it."""
        trouble = ""
        try:
            await asyncio.to_thread(meter.save)
        except Unavailable as error:
            trouble = error.message
        if trouble != self._unsaved.get(uuid, ""):
            self._unsaved[uuid] = trouble
            if trouble:
                _log.warning("the account is kept in memory only", gpu=uuid, why=trouble)
            else:
                _log.info("the account is written again", gpu=uuid)

    def _note(self, uuid: str, trouble: str) -> None:
        """Log what is wrong with a meter once for as long as it stays the same, and its end."""
        if trouble == self._troubles.get(uuid, ""):
            return
        self._troubles[uuid] = trouble
        if trouble:
            _log.warning("cannot read the meter", gpu=uuid, why=trouble)
        else:
            _log.info("the meter is read again", gpu=uuid)


def _meter(gpus: Devices, uuid: str) -> tuple[MeterReading | None, float]:
    """Return a GPU's meter and when it was read: idle energy is a matter of milliseconds."""
    try:
        return gpus.meter(uuid), time.monotonic()
    except FailedPrecondition as error:
        if error.reason != NO_METER:
            raise
        return None, time.monotonic()

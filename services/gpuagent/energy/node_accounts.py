"""The node's energy accounts, kept up to date."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from services.gpuagent.core.device_port import NO_METER, MeterReading
from services.gpuagent.devices.device_thread import Devices
from services.gpuagent.energy.core.account import Account
from services.gpuagent.energy.metering import GpuMeter
from services.gpuagent.supervision.managed_node import ManagedNode
from services.kit.errors import FailedPrecondition, ServiceError, Unavailable
from services.kit.telemetry import logs

_log = logs.get("accounts")

DOUBTFUL_S: Final = 60.0
"""Time that a meter is reported as doubtful for after an impossible step, s."""

_DOUBT: Final = (
    "its meter made steps beyond its power limit: they are not billed, the power over the time is"
)


@dataclass(slots=True, eq=False)
class NodeAccounts:
    """Every GPU's account.

    Attributes:
        node: Whose GPUs they are.
        meters: By GPU, in order of index.
        changed: Called after each reading.
    """

    PERIOD_S: ClassVar = 0.5

    node: ManagedNode
    meters: Mapping[str, GpuMeter]
    changed: Callable[[], None]
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _troubles: dict[str, str] = field(default_factory=dict)
    _unsaved: dict[str, str] = field(default_factory=dict)
    _implausible: dict[str, str] = field(default_factory=dict)

    def list(self) -> dict[str, Account]:
        """Return the accounts by GPU, in order of index."""
        return {uuid: meter.account for uuid, meter in self.meters.items()}

    def doubtful(self) -> dict[str, str]:
        """Return the trouble of meters that lately said what no GPU can draw, by GPU."""
        since_s = time.monotonic() - DOUBTFUL_S
        return {uuid: _DOUBT for uuid, each in self.meters.items() if each.refused_at_s > since_s}

    @property
    def unsaved(self) -> str:
        """Reason why accounts are in memory only; "": they are on disk."""
        return next(filter(None, self._unsaved.values()), "")

    async def read(self) -> None:
        """Read every meter once; a GPU that cannot be read now is read the next time."""
        async with self._reading:  # an older reading must not come after a newer one
            for uuid, meter in self.meters.items():
                try:
                    reading, at_s = await self.node.device.call(partial(_meter, uuid=uuid))
                except ServiceError as error:
                    trouble = error.message
                else:
                    trouble = "it has none: energy is modelled" if reading is None else ""
                    meter.read(reading, at_s, self.node.segments.on(uuid))
                    await self._save(uuid, meter)
                    began, ended = "the meter's steps are not billed", "the meter is believed again"
                    _note(self._implausible, uuid, self.doubtful().get(uuid, ""), began, ended)
                began, ended = "cannot read the meter", "the meter is read again"
                _note(self._troubles, uuid, trouble, began, ended)
        self.changed()

    async def _save(self, uuid: str, meter: GpuMeter) -> None:
        """Write an account; where the disk does not take it, the next one has all of it."""
        trouble = ""
        try:
            await asyncio.to_thread(meter.save)
        except Unavailable as error:
            trouble = error.message
        began, ended = "the account is kept in memory only", "the account is written again"
        _note(self._unsaved, uuid, trouble, began, ended)


def _note(known: dict[str, str], uuid: str, trouble: str, began: str, ended: str) -> None:
    """Log what is wrong with a GPU once for as long as it stays the same, and its end."""
    if trouble == known.get(uuid, ""):
        return
    known[uuid] = trouble
    if trouble:
        _log.warning(began, gpu=uuid, why=trouble)
    else:
        _log.info(ended, gpu=uuid)


def _meter(gpus: Devices, uuid: str) -> tuple[MeterReading | None, float]:
    """Return a GPU's meter and when it was read: idle energy is a matter of milliseconds."""
    try:
        return gpus.meter(uuid), time.monotonic()
    except FailedPrecondition as error:
        if error.reason != NO_METER:
            raise
        return None, time.monotonic()

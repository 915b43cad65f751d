"""SM clocks that are held: a clock belongs to a whole GPU, and to all its segments alike.

A plan holds a clock until it says otherwise. Below that, the agent's own loop may lower a clock for
as long as it runs: what it does is forgotten when the agent ends, however it ends.
"""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from cinquefoil.gpuagent.v1.records import LockClock
from services.gpuagent.core.model import ClockState
from services.gpuagent.devices.device_thread import DeviceThread
from services.kit.errors import FailedPrecondition, PermissionDenied, ServiceError, Unavailable
from services.kit.state_file import Damaged, read_parsed, set_aside, write_json
from services.kit.telemetry import logs

_log = logs.get("clocks")

VERSION: Final = 1


class ClockLocks:
    """Holds clocks, and remembers them over a crash.

    A clock is on disk as held before the driver is called to hold it, so that an agent that comes
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
        self._lowered_mhz: dict[str, int] = {}  # 0: by an agent before this one
        self._capped_mhz: dict[str, int] = {}  # for a power budget: above all others
        self._releasing = False
        self._writing = asyncio.Lock()
        self._gpus: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def state(self) -> ClockState:
        """Clocks held by plans."""
        return ClockState(self._allowed, dict(self._held_mhz))

    def in_force_mhz(self, gpu_uuid: str) -> int:
        """Return the clock that a GPU is held at, by a plan or below it; 0: none."""
        return self._within_cap(gpu_uuid, self._uncapped_mhz(gpu_uuid))

    def ceiling_mhz(self, gpu_uuid: str) -> int:
        """Return the highest clock that a plan and a power budget leave a GPU; 0: its own."""
        return self._within_cap(gpu_uuid, self._held_mhz.get(gpu_uuid, 0))

    def _uncapped_mhz(self, gpu_uuid: str) -> int:
        return self._lowered_mhz.get(gpu_uuid, 0) or self._held_mhz.get(gpu_uuid, 0)

    def _within_cap(self, gpu_uuid: str, clock_mhz: int) -> int:
        cap_mhz = self._capped_mhz.get(gpu_uuid, 0)
        return min(clock_mhz or cap_mhz, cap_mhz) if cap_mhz else clock_mhz

    def check(self) -> None:
        """Refuse an agent that may not hold clocks.

        Raises:
            PermissionDenied: It may not.
        """
        if not self._allowed:
            raise PermissionDenied(
                "this agent may not hold clocks: nodes.<name>.allow_clocks is off",
                reason="CLOCKS_NOT_ALLOWED",
            )

    async def restore(self) -> None:
        """Hold again what a plan held when the agent ended, and give back what was lowered.

        A GPU that cannot be held any more is given back: the planner then sees it and decides.
        Where the file is damaged, every clock is given back.

        Raises:
            Unavailable: The file cannot be read, or not be set aside.
        """
        held_mhz, lowered = await self._noted()
        self._lowered_mhz = dict.fromkeys(lowered, 0)
        for gpu_uuid, clock_mhz in held_mhz.items():
            try:
                await self.hold(LockClock(gpu_uuid, clock_mhz))
            except ServiceError as error:
                _log.warning("clock is not held any more", gpu=gpu_uuid, error=error.message)
                await self._write(gpu_uuid, 0, self._lowered_mhz.get(gpu_uuid))
        for gpu_uuid in tuple(self._lowered_mhz):
            await self._give_back(gpu_uuid)

    async def _noted(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return what an agent before this one held, MHz, and the GPUs whose clock it lowered."""
        try:
            noted = await asyncio.to_thread(read_parsed, self._path, _parsed, version=VERSION)
        except Damaged as damage:
            await asyncio.to_thread(set_aside, self._path, damage.message)
            gpus = await self._device.call(lambda d: d.list()) if self._allowed else ()
            return {}, tuple(gpu.uuid for gpu in gpus)
        return noted or ({}, ())

    async def hold(self, action: LockClock) -> None:
        """Hold a clock for a plan, or give it back.

        Raises:
            PermissionDenied: The agent may not hold clocks, or not touch this GPU.
            InvalidArgument: The clock is outside the supported range.
            FailedPrecondition: The GPU cannot lock its clock.
        """
        self.check()
        async with self._gpus[action.gpu_uuid]:
            held_mhz = action.clock_mhz or self._held_mhz.get(action.gpu_uuid, 0)
            lowered_mhz = self._lowered_mhz.get(action.gpu_uuid)
            await self._change(action, (held_mhz, lowered_mhz), (action.clock_mhz, None))

    async def lower(self, gpu_uuid: str, clock_mhz: int, ceiling_mhz: int) -> None:
        """Lower a clock below what the plan says; what a plan has changed meanwhile stays.

        Args:
            gpu_uuid: The GPU.
            clock_mhz: The clock; 0: as the plan says.
            ceiling_mhz: What the plan was thought to say.

        Raises:
            ServiceError: The driver does not; the clock is as before.
        """
        async with self._gpus[gpu_uuid]:
            held_mhz = self._held_mhz.get(gpu_uuid, 0)
            before_mhz = self._lowered_mhz.get(gpu_uuid)
            if held_mhz != ceiling_mhz or self._releasing or clock_mhz == (before_mhz or 0):
                return
            action = LockClock(gpu_uuid, clock_mhz or held_mhz)
            first = (held_mhz, clock_mhz or before_mhz)
            await self._change(action, first, (held_mhz, clock_mhz or None))

    async def cap(self, gpu_uuid: str, clock_mhz: int) -> None:
        """Keep a GPU at or below a clock, whatever a plan or the clock loop says.

        Args:
            gpu_uuid: The GPU.
            clock_mhz: The clock; 0: no cap.

        Raises:
            ServiceError: The driver does not; the cap is as before.
        """
        self.check()
        async with self._gpus[gpu_uuid]:
            before_mhz = self._capped_mhz.get(gpu_uuid)
            if self._releasing or clock_mhz == (before_mhz or 0):
                return
            _note(self._capped_mhz, gpu_uuid, clock_mhz or before_mhz)
            try:
                await self._save()
                _note(self._capped_mhz, gpu_uuid, clock_mhz or None)
                await self._apply(LockClock(gpu_uuid, self._uncapped_mhz(gpu_uuid)))
            except ServiceError:
                _note(self._capped_mhz, gpu_uuid, before_mhz)
                raise
            await self._save()

    async def release(self) -> None:
        """Give every clock back and lower none any more, as the agent does when it ends."""
        self._releasing = True
        capped = self._capped_mhz.keys()
        self._capped_mhz = {}
        for gpu_uuid in self._held_mhz.keys() | self._lowered_mhz.keys() | capped:
            await self._give_back(gpu_uuid)

    async def _change(
        self, action: LockClock, first: tuple[int, int | None], then: tuple[int, int | None]
    ) -> None:
        """Call the driver, with `first` (held, lowered) noted meanwhile and `then` once it did."""
        uuid = action.gpu_uuid
        before = self._held_mhz.get(uuid, 0), self._lowered_mhz.get(uuid)
        await self._write(uuid, *first)
        try:
            await self._apply(action)
        except ServiceError:
            await self._write(uuid, *before)
            raise
        await self._write(uuid, *then)

    async def _give_back(self, gpu_uuid: str) -> None:
        async with self._gpus[gpu_uuid]:
            try:
                await self._apply(LockClock(gpu_uuid, 0))
            except ServiceError as error:  # still on disk: the next agent tries again
                _log.warning("clock could not be given back", gpu=gpu_uuid, error=error.message)
            else:
                await self._write(gpu_uuid, 0, None)

    async def _apply(self, action: LockClock) -> None:
        uuid = action.gpu_uuid
        clock_mhz = self._within_cap(uuid, action.clock_mhz)
        if clock_mhz:
            await self._device.call(lambda d: d.lock_clock(uuid, clock_mhz))
        else:
            try:
                await self._device.call(lambda d: d.reset_clock(uuid))
            except FailedPrecondition as error:
                if error.reason != "NVML_NOT_SUPPORTED":  # what cannot be held is not held
                    raise

    async def _write(self, gpu_uuid: str, held_mhz: int, lowered_mhz: int | None) -> None:
        """Note what is held, and on disk for which GPUs: that alone outlives the agent.

        Raises:
            Unavailable: The disk does not take it; what is noted is as before.
        """
        before = (dict(self._held_mhz), set(self._lowered_mhz))
        noted = (self._held_mhz.get(gpu_uuid), self._lowered_mhz.get(gpu_uuid))
        _note(self._held_mhz, gpu_uuid, held_mhz or None)
        _note(self._lowered_mhz, gpu_uuid, lowered_mhz)
        if before == (self._held_mhz, set(self._lowered_mhz)):
            return
        try:
            await self._save()
        except Unavailable as error:
            if held_mhz or lowered_mhz is not None:
                _note(self._held_mhz, gpu_uuid, noted[0])
                _note(self._lowered_mhz, gpu_uuid, noted[1])
                raise
            # On disk as held: the next agent gives it back once more, which changes nothing.
            _log.warning("the file has clocks that are held no more", why=error.message)

    async def _save(self) -> None:
        """Write down what is held, lowered or capped; errors as for `_write`."""
        async with self._writing:  # GPUs are held at the same time; the file is one
            data = {
                "version": VERSION,
                "held_mhz": dict(self._held_mhz),
                "lowered": sorted(self._lowered_mhz.keys() | self._capped_mhz.keys()),
            }
            await asyncio.to_thread(write_json, self._path, data)


def _parsed(data: dict[str, Any]) -> tuple[dict[str, int], tuple[str, ...]]:
    return dict(data.get("held_mhz", {})), tuple(data.get("lowered", ()))


def _note(noted: dict[str, int], gpu_uuid: str, clock_mhz: int | None) -> None:
    """Note a GPU's clock; None: note none."""
    if clock_mhz is None:
        noted.pop(gpu_uuid, None)
    else:
        noted[gpu_uuid] = clock_mhz

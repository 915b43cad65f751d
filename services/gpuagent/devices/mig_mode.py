"""MIG mode: the agent turns it on at its start, except on GPUs where it was switched off."""

import asyncio
from pathlib import Path
from typing import Final

from cinquefoil.gpuagent.v1.records import SetMigMode
from services.gpuagent.devices.device_thread import DeviceThread
from services.kit.errors import PermissionDenied
from services.kit.state_file import read_parsed, write_json

VERSION: Final = 1


class MigModes:
    """Switches MIG mode, and remembers where it has to stay off.

    Args:
        device: The GPUs.
        path: Where it is written down.
        allowed: It may switch modes at all.
    """

    def __init__(self, device: DeviceThread, path: Path, *, allowed: bool) -> None:
        self._device = device
        self._path = path
        self._allowed = allowed
        self._writing = asyncio.Lock()

    def check(self) -> None:
        """Refuse an agent that may not switch modes.

        Raises:
            PermissionDenied: It may not.
        """
        if not self._allowed:
            raise PermissionDenied(
                "this agent may not switch MIG mode: nodes.<name>.allow_mig_mode is off",
                reason="MIG_MODE_NOT_ALLOWED",
            )

    async def switch(self, action: SetMigMode) -> None:
        """Switch the mode of an idle GPU.

        Raises:
            PermissionDenied: The agent may not.
            FailedPrecondition: The GPU has no MIG mode, is in use, or needs a reset first.
        """
        self.check()
        await self._device.call(lambda d: d.set_mig_mode(action.gpu_uuid, enabled=action.enabled))
        async with self._writing:  # GPUs switch at the same time; the file is one
            await asyncio.to_thread(self._note, action)

    def _note(self, action: SetMigMode) -> None:
        off = kept_off(self._path)
        now = off - {action.gpu_uuid} if action.enabled else off | {action.gpu_uuid}
        if now != off:
            write_json(self._path, {"version": VERSION, "off": sorted(now)})


def kept_off(path: Path) -> frozenset[str]:
    """Return the GPUs whose MIG mode was switched off on purpose. Blocks.

    Raises:
        FailedPrecondition: The file is damaged.
    """
    return read_parsed(path, lambda data: frozenset(data["off"]), version=VERSION) or frozenset()

"""What the agent asks of MPS, whichever of its control interfaces is spoken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.kit.segment import MpsLimit


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The place of one control daemon: a slice has its own, and so has a GPU without MIG.

    Attributes:
        device_uuid: "MIG-..." or "GPU-...": all that its clients see.
        folder: Its files; nobody else's.
    """

    device_uuid: str
    folder: Path

    @property
    def pipes(self) -> Path:
        """Its CUDA_MPS_PIPE_DIRECTORY."""
        return self.folder / "pipe"

    @property
    def logs(self) -> Path:
        """Its CUDA_MPS_LOG_DIRECTORY."""
        return self.folder / "log"


class MpsDriver(Protocol):
    """Control daemons, by seat. Every call ends within a bounded time."""

    async def start(self, daemon: MpsDaemon, ceiling: MpsLimit) -> None:
        """Start a daemon, in place of one that does not answer, and bound its clients to come.

        Args:
            daemon: Where.
            ceiling: What no client may exceed.

        Raises:
            FailedPrecondition: It cannot run here.
            Unavailable: It does not answer.
        """
        ...

    async def check(self, daemon: MpsDaemon) -> None:
        """Make sure that a daemon answers.

        Raises:
            Unavailable: It does not.
        """
        ...

    async def servers(self, daemon: MpsDaemon) -> tuple[int, ...]:
        """Return the ids of its server processes; one comes with the first client.

        Raises:
            Unavailable: It does not answer.
        """
        ...

    async def stop(self, daemon: MpsDaemon) -> None:
        """End a daemon, by force where it does not listen; one that does not run is no error."""
        ...

    async def running(self, root: Path) -> frozenset[Path]:
        """Return the folders below `root` whose daemons run, whoever started them."""
        ...

    def environment(self, daemon: MpsDaemon, limit: MpsLimit) -> Mapping[str, str]:
        """Return what makes a process a client, with its limit.

        A client names no device: it sees its daemon's.
        """
        ...

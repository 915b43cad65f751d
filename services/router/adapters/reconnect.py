"""A peer that comes and goes: tried again with backoff, and talked of only when that changes."""

from __future__ import annotations

import grpc

from services.kit.backoff import Backoff
from services.kit.clock import Clock
from services.kit.telemetry import logs

_log = logs.get("router.peer")


class Peer:
    """What is known of a peer's presence."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._backoff = Backoff()
        self._away = False

    def here(self) -> None:
        """It answered."""
        if self._away:
            _log.info("peer is back", peer=self._name)
        self._away = False
        self._backoff.reset()

    def lost(self, why: str) -> None:
        """It does not answer."""
        if not self._away:
            _log.warning("peer is away", peer=self._name, why=why)
        self._away = True

    def lost_call(self, error: grpc.aio.AioRpcError) -> None:
        """A call to it failed."""
        self.lost(f"{error.code().name}: {error.details()}")

    async def before_retry(self) -> None:
        """Wait until it may be tried again."""
        await self._clock.sleep(self._backoff.next_s())

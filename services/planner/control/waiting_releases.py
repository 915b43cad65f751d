"""Waiting work of the live planner: reports of batch services and routers, releases in return."""

import asyncio
import math
from collections.abc import Iterable
from typing import Final

from cinquefoil.planner.v1.records import WaitingModel
from services.kit.errors import ServiceError
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.control.publisher import Publisher
from services.planner.core.cycle.waiting_work import WaitingWork
from services.planner.core.waiting.outlook import RoomMemory

_log = logs.get("waiting")

_DECIDE_S: Final = 20.0
"""Longest time between two decisions, s."""

_PAUSE_S: Final = 1.0
"""Shortest time between two decisions, s."""

_SAVE_S: Final = 60.0


class WaitingReleases:
    """Decides what is released: with each report, and at least every 20 s.

    Args:
        work: Waiting work.
        store: Keeps what the fleet offered by hour, for the next planner.
        publisher: Sends releases to routers and batch services.

    Attributes:
        batch_services: Connected batch services.
    """

    def __init__(self, work: WaitingWork, store: Store, publisher: Publisher) -> None:
        self.work = work
        self.batch_services = 0
        self._store, self._publisher = store, publisher
        self._reported = asyncio.Event()
        self._saved_s = -math.inf

    async def restore(self) -> None:
        """Continue with the rooms that the planner before this one knew."""
        rooms = await self._store.waiting_rooms()
        self.work.memory = {model: RoomMemory(hours) for model, hours in rooms.items()}
        self.work.attained.update(await self._store.waiting_attained())

    def report(self, models: Iterable[WaitingModel], reporter: str) -> None:
        """Record what waits at a batch service."""
        self.work.report(models, reporter, max(self.batch_services, 1))
        self._reported.set()

    def hold(self, held: bool, models: frozenset[str]) -> None:  # an event's only facts
        """Pause all waiting work for a power or carbon budget, or that of some models."""
        if (held, models) != (self.work.held, self.work.held_models):
            self.work.held, self.work.held_models = held, models
            _log.info("waiting work is held for a budget", all=held, models=sorted(models))
            self._reported.set()

    async def keep(self) -> None:
        """Decide for ever."""
        clock = self.work.state.clock
        while True:
            self._reported.clear()
            try:
                # A handful of models: milliseconds each.
                self._publisher.release(self.work.update())
                if clock.monotonic() - self._saved_s >= _SAVE_S:
                    await self._save()
                    self._saved_s = clock.monotonic()
            except ServiceError as error:
                _log.warning("waiting work is released as before", cause=error.message)
            await asyncio.sleep(_PAUSE_S)
            try:
                async with asyncio.timeout(_DECIDE_S):
                    await self._reported.wait()
            except TimeoutError:
                continue

    async def _save(self) -> None:
        rooms = {model: tuple(each.hours) for model, each in self.work.memory.items()}
        await self._store.waiting_rooms.save(rooms)
        await self._store.waiting_attained.save(self.work.attained)

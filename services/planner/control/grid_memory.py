"""The last intensities, kept for the planner that leads next: it may not reach a carbon service."""

from collections.abc import Collection
from typing import Final

from services.kit.clock import Clock
from services.kit.errors import Unavailable
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.core.cycle.cluster_state import ClusterState

_log = logs.get("grid")

_SAVE_INTERVAL_S: Final = 2.0


class GridMemory:
    """Writes new intensities every two seconds, and restores them.

    Args:
        store: The open database.
        clock: Source of time.
        state: State of the cluster.
        zones: Zones that are followed.
    """

    def __init__(
        self, store: Store, clock: Clock, state: ClusterState, zones: Collection[str]
    ) -> None:
        self._store = store
        self._clock = clock
        self._state = state
        self._zones = zones
        self._saved = 0  # intensities heard when it was written last

    async def restore(self) -> None:
        """Continue with the intensities that the planner before this one heard."""
        last = await self._store.intensities()
        self._state.recall_intensity({z: each for z, each in last.items() if z in self._zones})

    async def keep(self) -> None:
        """Write what is new, for ever."""
        while True:
            count = self._state.signal.count
            if count != self._saved:
                try:
                    await self._store.intensities.save(self._state.last_intensities())
                except Unavailable as error:  # the next time covers it
                    _log.warning("the intensities were not written", error=error.message)
                else:
                    self._saved = count
            await self._clock.sleep(_SAVE_INTERVAL_S)

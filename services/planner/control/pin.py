"""Which plan is held: over restarts, until it is let go."""

from __future__ import annotations

from services.kit.errors import FailedPrecondition
from services.kit.telemetry import logs
from services.planner.adapters.store import Store

_log = logs.get("pin")


class Pin:
    """The pin. Attributes: version (of the plan that is held; None: none is)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.version: int | None = None

    async def restore(self) -> None:
        """Take up what was pinned before a restart."""
        self.version = await self._store.pin()

    async def hold(self, version: int | None, active: int) -> int:
        """Hold the active plan; return its version.

        Args:
            version: Must be the active plan's; None: whichever is active.
            active: The active plan's; 0: none is.

        Raises:
            FailedPrecondition: It is not the active one, or none is.
        """
        if not active:
            raise FailedPrecondition("version: no plan is active yet", field="version")
        if version not in (None, active):
            raise FailedPrecondition(
                f"version: plan {version} is not the active one, which is {active}; "
                "roll back to it instead",
                field="version",
            )
        await self._store.save_pin(active)
        self.version = active
        _log.info("pinned", version=active)
        return active

    async def release(self) -> None:
        """Hold none."""
        await self._store.save_pin(None)
        self.version = None
        _log.info("unpinned")

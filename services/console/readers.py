"""What the console shows, and who reads it: an argument, for the console knows no service."""

from typing import Any, Protocol

Document = dict[str, Any]
"""An object for JSON; figures that are not finite become null on their way out."""


class Readers(Protocol):
    """Reads a deployment; every method raises a ServiceError where a service refuses."""

    async def now(self) -> Document:
        """Return `status`, `zones` with forecasts, and `account` of the last day, by model.

        A service that does not answer costs its own part only; `status.problems` says which.
        """
        ...

    async def plans(self) -> Document:
        """Return the newest plans, newest first, and the version that is pinned."""
        ...

    async def plan(self, version: int) -> Document:
        """Return one plan; 0: the newest."""
        ...

    async def explanation(self, version: int) -> Document:
        """Return why a plan is as it is; recomputed, which takes seconds on large fleets."""
        ...

    async def difference(self, from_version: int, to_version: int) -> Document:
        """Return how two plans differ."""
        ...

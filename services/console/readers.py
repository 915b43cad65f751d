"""What the console shows, and who reads it: an argument, for the console knows no service."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from services.console.documents import Document


class Readers(Protocol):
    """Reads a deployment; every method raises a ServiceError where a service refuses."""

    async def now(self) -> Document:
        """Return `status`, `zones` with forecasts, and `account` of the last day, by model.

        A service that does not answer costs its own part only; `status.problems` says which.
        """
        ...

    def changes(self) -> AsyncGenerator[int, None]:
        """Yield the newest plan's version whenever that or the plan's state has changed."""
        ...

    async def plans(self) -> Document:
        """Return the newest plans, newest first, and the version that is pinned."""
        ...

    async def history(self) -> Document:
        """Return `plans` of the last day that came to run, oldest first: what ran where.

        Each has `version`, `since` and `slices`: `gpu`, `start`, `profile`, `model`, `variant`.
        """
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

    async def models(self) -> Document:
        """Return each model's policy and variants, as the deployment file and routers have them."""
        ...

    async def account(self, by: str, hours: int) -> Document:
        """Return the account of the last hours: `rows` by `by`, and `hours`, one row each.

        Args:
            by: "model", "node" or "zone".
            hours: How far back, >= 1.
        """
        ...

    async def what_if(self, given: Mapping[str, Any]) -> Document:
        """Return what would be decided under circumstances; nothing changes.

        `why`, where it is given, has the answer say what else there was, which takes longer.

        Args:
            given: `demand` and `intensity`: factors of the present ones; `carbon_weight` and
                `accuracy_floor`, 0..1; `strategy`; `without`: UUIDs of GPUs that are out. What is
                absent is as at present.
        """
        ...

    def sweep(self, given: Mapping[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield `carbon_weight` and `outlook` of the plan for each of several weights of carbon.

        Args:
            given: As for `what_if`; its `carbon_weight` does not count.
        """
        ...

    def receipts(self, given: Mapping[str, Any]) -> AsyncGenerator[Document, None]:
        """Yield `receipts` of answers as they are given, and how many were `left_out`.

        `routers` of the router's `processes` are heard.

        Args:
            given: `sample`: share of the answers, > 0, <= 1; `model` and `variant`: only theirs.
                What is absent: all.
        """
        ...


class Operators(Protocol):
    """Changes a deployment."""

    async def carry_out(self, order: str, given: Document, owner: str) -> Document:
        """Carry out an order and return what came of it.

        Args:
            order: Its name; a NotFound is raised for one that does not exist.
            given: Its arguments.
            owner: Who gave it.
        """
        ...

"""Port of the engine to peer regions, which answer some of its requests."""

from collections.abc import Mapping
from typing import Protocol

from services.router.core.accounting.receipts import Answer
from services.router.core.forwarding import Outgoing


class ForwardPort(Protocol):
    """Has requests answered by peer regions."""

    async def forward(self, outgoing: Outgoing) -> Answer | None:
        """Return a peer region's answer; None: this region answers."""
        ...

    def received(self, region: str, model: str) -> None:
        """Count a request that came from a peer."""
        ...

    def answered(self, region: str, model: str, answer: Answer) -> None:
        """Count an answer to a peer's request."""
        ...

    def may_leave(self) -> Mapping[str, int]:
        """Return how many requests that can wait may leave now, by model."""
        ...

"""What the engine tells whoever foretells the lengths of answers, and does not wait for."""

from __future__ import annotations

from typing import Protocol

from services.router.dispatcher import Dispatcher
from services.router.domain import Request


class Lengths(Protocol):
    """Foretells lengths of answers, as far and as soon as it can."""

    def ask(self, dispatcher: Dispatcher, request: Request) -> None:
        """Have `dispatcher.foretell` called for a request that waits; or not, or late."""
        ...

    def ended(self, number: int) -> None:
        """Nobody wants to know any more; nothing happens where nobody asked."""
        ...

    def learn(self, request: Request, output_tokens: int) -> None:
        """Take in how long an answer was, tokens; 0: it has none, or it is not known."""
        ...

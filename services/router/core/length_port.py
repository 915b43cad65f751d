"""What the engine tells whoever foretells the lengths of answers, and takes from it."""

from __future__ import annotations

from typing import Protocol

from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Request
from services.router.core.queue.boost import CLASSES


class LengthPort(Protocol):
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


_MIDDLES = (0.125, 0.375, 0.625, 0.87, 0.995)
"""Of the predictor's five classes, cut at the percentiles 25, 50, 75 and 99: their middles."""


def class_at(rank: float | None, length_class: int) -> int | None:
    """Return the class that a request is ranked by, 0..CLASSES - 1.

    Args:
        rank: The share of the model's requests of which shorter answers are expected, 0..1. None,
            or no share: not known.
        length_class: The predictor's class, 0..4, which then counts; others are no class: None.
    """
    if rank is None or not 0 <= rank <= 1:
        if not 0 <= length_class < len(_MIDDLES):
            return None
        rank = _MIDDLES[length_class]
    return min(int(rank * CLASSES), CLASSES - 1)

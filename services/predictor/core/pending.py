"""What was foretold and not yet judged: bounded, the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate
from services.predictor.core.prediction import Source


@dataclass(frozen=True, slots=True)
class Expectation:
    """A length foretold whose truth is still to come.

    Attributes:
        estimate: The length.
        source: Who foretold it.
        asked_s: When, s since 1970.
        vector: Of the prompt, where it was embedded.
        told: What a like prompt told, where there was one.
        said: What the proxy model said, where it was asked.
        teller: Key of the like prompt.
    """

    estimate: Estimate
    source: Source
    asked_s: float
    vector: Vector | None = None
    told: Estimate | None = None
    said: Estimate | None = None
    teller: bytes = b""


class Pending:
    """Expectations by model and prompt; of prompts asked about several times, the last.

    Args:
        capacity: Most expectations.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: OrderedDict[tuple[str, bytes], Expectation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, model: str, key: bytes, expectation: Expectation) -> None:
        """Wait for a prompt's true length."""
        self._waiting[model, key] = expectation
        self._waiting.move_to_end((model, key))
        if len(self._waiting) > self._capacity:
            self._waiting.popitem(last=False)

    def get(self, model: str, key: bytes) -> Expectation | None:
        """Return what was foretold of a prompt; it stays, for others may have asked too."""
        return self._waiting.get((model, key))

    def forget(self, model: str | None, since_s: float) -> set[tuple[str, bytes]]:
        """Drop what was asked before an instant, of one model or of all; return what that was."""
        old = {
            (of, key)
            for (of, key), expectation in self._waiting.items()
            if model in {None, of} and expectation.asked_s < since_s
        }
        for each in old:
            del self._waiting[each]
        return old

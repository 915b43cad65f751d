"""How many lengths were foretold, by whom, and how well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from services.predictor.core.prediction import Source


@dataclass(slots=True)
class Count:
    """What one source foretold of one model's answers.

    Attributes:
        predictions: How many.
        total_s: Time they took in all, s.
        judged: Of them, those whose true length is known.
        right: Of those, where the class was right.
    """

    predictions: int = 0
    total_s: float = 0.0
    judged: int = 0
    right: int = 0


class Tally:
    """Counts since the service's start."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, Source], Count] = defaultdict(Count)
        self._observed: defaultdict[str, int] = defaultdict(int)

    def foretold(self, model: str, source: Source, took_s: float) -> None:
        """A length was foretold."""
        count = self._counts[model, source]
        count.predictions += 1
        count.total_s += took_s

    def observed(self, model: str) -> None:
        """A true length was told."""
        self._observed[model] += 1

    def judged(self, model: str, source: Source, *, right: bool) -> None:
        """A foretold length's class turned out right, or wrong."""
        count = self._counts[model, source]
        count.judged += 1
        count.right += right

    def answers(self, model: str) -> int:
        """Return how many true lengths were told of a model."""
        return self._observed.get(model, 0)

    def counts(self, model: str) -> Iterator[tuple[Source, Count]]:
        """Yield what each source foretold; safe to read from another thread."""
        for (of, source), count in tuple(self._counts.items()):
            if of == model:
                yield source, count

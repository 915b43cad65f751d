"""Number of predictions by model and source, their duration, and how many were right."""

from collections import defaultdict
from dataclasses import dataclass

from services.predictor.core.prediction import Source


@dataclass(slots=True)
class SourceStats:
    """Predictions of one source for one model.

    Attributes:
        predictions: Number of predictions.
        total_s: Their total duration, s.
        judged: Predictions whose true length is known.
        right: Of those, predictions of the right class.
    """

    predictions: int = 0
    total_s: float = 0.0
    judged: int = 0
    right: int = 0


class PredictionStats:
    """Counts since the start of the service."""

    def __init__(self) -> None:
        self._sources: defaultdict[tuple[str, Source], SourceStats] = defaultdict(SourceStats)
        self._observed: defaultdict[str, int] = defaultdict(int)

    def count_prediction(self, model: str, source: Source, duration_s: float) -> None:
        """Count a prediction."""
        stats = self._sources[model, source]
        stats.predictions += 1
        stats.total_s += duration_s

    def count_observation(self, model: str) -> None:
        """Count a true length."""
        self._observed[model] += 1

    def count_judgement(self, model: str, source: Source, *, right: bool) -> None:
        """Count a prediction whose class turned out right or wrong."""
        stats = self._sources[model, source]
        stats.judged += 1
        stats.right += right

    def observed(self, model: str) -> int:
        """Return the number of true lengths reported for a model."""
        return self._observed.get(model, 0)

    def by_source(self, model: str) -> list[tuple[Source, SourceStats]]:
        """Return a model's statistics by source; safe to call from another thread."""
        found = tuple(self._sources.items())
        return sorted(
            ((source, stats) for (owner, source), stats in found if owner == model),
            key=lambda each: each[0],
        )

"""Length models without a trained file."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf

from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate
from services.predictor.core.length_classes import LengthClasses
from services.predictor.runtime.length_models import LengthModels


class FixedClasses(LengthClasses):
    """Answers of 50 tokens, and edges that no answer moves."""

    def __init__(self) -> None:
        """There is nothing to learn."""

    @property
    def edges_tokens(self) -> tuple[float, ...]:
        return (10.0, 100.0, 1000.0, 10_000.0)

    def class_of(self, tokens: float) -> int:
        return bisect_left(self.edges_tokens, tokens)

    def estimate(self, probabilities: Sequence[float] = (), max_tokens: float = inf) -> Estimate:
        tokens = min(50.0, max_tokens)
        return Estimate(tokens, self.class_of(tokens), tokens, tokens, "prior")

    def shortened(self, estimate: Estimate, max_tokens: float) -> Estimate:
        tokens = min(estimate.expected_tokens, max_tokens)
        return Estimate(tokens, self.class_of(tokens), tokens, tokens, estimate.source)

    def rank(self, expected_tokens: float) -> float | None:
        return self.class_of(expected_tokens) / 4

    def observe(
        self, tokens: float, probabilities: Sequence[float] = (), *, truncated: bool = False
    ) -> None:
        """There is nothing to learn."""


class Oracle(LengthModels):
    """Knows every length of the model "m": the number that is the prompt; 50 where it is none."""

    def __init__(self) -> None:
        self._fixed = FixedClasses()

    def classes(self, served_model: str) -> LengthClasses:
        return self._fixed

    def predict(self, served_model: str, prompt: str, vector: Vector) -> Estimate:
        assert vector.ndim == 1
        tokens = float(prompt) if prompt.isdigit() else 50.0
        return Estimate(tokens, self._fixed.class_of(tokens), tokens, tokens, "model")

    def saved(self) -> dict[str, bytes]:
        return {}

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """There was nothing to save."""

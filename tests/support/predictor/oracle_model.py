"""Length models without a trained file."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping

from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate, EstimateSource
from services.predictor.runtime.length_models import LengthModels

EDGES_TOKENS = (10.0, 100.0, 1000.0, 10_000.0)


class Oracle(LengthModels):
    """Knows every length of the model "m": the number that is the prompt; 50 where it is none."""

    def __init__(self) -> None:
        self._edges_tokens: Mapping[str, tuple[float, ...]] = defaultdict(lambda: EDGES_TOKENS)

    def predict(self, served_model: str, prompt: str, vector: Vector) -> Estimate:
        assert vector.ndim == 1
        return self._exactly(served_model, float(prompt) if prompt.isdigit() else 50.0, "model")

    def prior(self, served_model: str) -> Estimate:
        return self._exactly(served_model, 50.0, "prior")

    def class_of(self, served_model: str, tokens: float) -> int:
        return bisect_left(self._edges_tokens[served_model], tokens)

    def rank(self, served_model: str, expected_tokens: float) -> float | None:
        return self.class_of(served_model, expected_tokens) / 4

    def edges_tokens(self, served_model: str) -> tuple[float, ...]:
        return self._edges_tokens[served_model]

    def shortened(self, served_model: str, estimate: Estimate, max_tokens: float) -> Estimate:
        tokens = min(estimate.expected_tokens, max_tokens)
        return self._exactly(served_model, tokens, estimate.source)

    def observe(
        self, served_model: str, said: Estimate | None, tokens: int, *, truncated: bool = False
    ) -> None:
        """There is nothing to learn."""

    def saved(self) -> dict[str, bytes]:
        return {}

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """There was nothing to save."""

    def _exactly(self, model: str, tokens: float, source: EstimateSource) -> Estimate:
        return Estimate(tokens, self.class_of(model, tokens), tokens, tokens, source)

"""A prediction as the service returns it, and predictions that await the true length."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate

Source = Literal["exact", "semantic", "model", "prior"]
"""The cache for this very prompt, the cache for a similar one, the proxy model, or the prior."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted length.

    Attributes:
        estimate: The predicted length.
        source: Part of the service that predicted it.
        key: Stands for the prompt when its true length is reported; empty: nothing will be learned.
        rank: Share of the model's requests, 0..1, of which shorter answers are expected.
    """

    estimate: Estimate
    source: Source
    key: bytes
    rank: float


@dataclass(frozen=True, slots=True)
class PendingPrediction:
    """A prediction whose true length is not known yet.

    Attributes:
        estimate: The predicted length.
        source: Part of the service that predicted it.
        requested_s: Time of the request, s since 1970.
        vector: Embedding of the prompt, where it was computed.
        from_cache: Estimate from a similar prompt, where there was one.
        from_model: Estimate of the proxy model, where it ran.
        neighbour_key: Key of the similar prompt.
    """

    estimate: Estimate
    source: Source
    requested_s: float
    vector: Vector | None = None
    from_cache: Estimate | None = None
    from_model: Estimate | None = None
    neighbour_key: bytes = b""


class PendingPredictions:
    """The last pending prediction of each model and prompt; the oldest are evicted first.

    Args:
        capacity: Maximum number of predictions.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pending: OrderedDict[tuple[str, bytes], PendingPrediction] = OrderedDict()

    def put(self, model: str, key: bytes, prediction: PendingPrediction) -> None:
        """Add or replace a prompt's prediction."""
        self._pending[model, key] = prediction
        self._pending.move_to_end((model, key))
        if len(self._pending) > self._capacity:
            self._pending.popitem(last=False)

    def get(self, model: str, key: bytes) -> PendingPrediction | None:
        """Return a prompt's prediction; it stays, for other requests may have the same prompt."""
        return self._pending.get((model, key))

    def forget(self, model: str | None, since_s: float) -> set[tuple[str, bytes]]:
        """Delete predictions requested before `since_s`, of one model or all; return the keys."""
        old = {
            (owner, key)
            for (owner, key), prediction in self._pending.items()
            if model in {None, owner} and prediction.requested_s < since_s
        }
        for each in old:
            del self._pending[each]
        return old

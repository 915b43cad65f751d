"""What the service answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.predictor.core.estimate import Estimate

Source = Literal["exact", "semantic", "model", "prior"]
"""The cache for this very prompt, the cache for one like it, the proxy model, or the prior."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """A length foretold.

    Attributes:
        estimate: The length.
        source: Who foretold it.
        key: Stands for the prompt when its true length is told; empty: nothing will be learned.
        rank: Share of the model's requests, 0..1, of which shorter answers are expected.
    """

    estimate: Estimate
    source: Source
    key: bytes
    rank: float

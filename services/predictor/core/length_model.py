"""What the service knows of lengths beside its cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate


class Knowledge(Protocol):
    """Of every served model: how long its answers are, and what a prompt says of that."""

    def predict(self, served_model: str, prompt: str, vector: Vector) -> Estimate:
        """Return what the proxy model says of a prompt and its vector.

        Blocks for ms; threads may share it.
        """
        ...

    def prior(self, served_model: str) -> Estimate:
        """Return what can be said whatever the prompt. Takes microseconds."""
        ...

    def class_of(self, served_model: str, tokens: float) -> int:
        """Return a length's class, 0..4, among the served model's own answers."""
        ...

    def rank(self, served_model: str, expected_tokens: float) -> float | None:
        """Return the share of the model's recent requests, 0..1, that expected shorter answers.

        None: too few are known. This request counts from now on.
        """
        ...

    def edges_tokens(self, served_model: str) -> tuple[float, ...]:
        """Return the upper edges of the classes 0..3, tokens."""
        ...

    def observe(self, served_model: str, said: Estimate | None, tokens: int) -> None:
        """Take in an answer's true length, and what had been said of it."""
        ...

    def saved(self) -> dict[str, bytes]:
        """Return, by served model, what was learned."""
        ...

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """Go on from what was learned before; what cannot be read counts for nothing."""
        ...

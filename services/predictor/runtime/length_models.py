"""What is known of each served model's answers; stands for `Knowledge`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

from services.kit.errors import InvalidArgument
from services.predictor.adapters.proxy_model import DEFAULT, Proxy
from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate
from services.predictor.core.length_classes import Classes


class Histories:
    """The classes of each served model, and the proxy model that tells them from prompts.

    A model that the proxy model was trained on starts with what was seen then; any other starts
    from all of them together. Unknown models are answered so, and nothing of them is kept.

    Args:
        proxy: Tells classes from prompts.
        models: Whose answers are observed.
    """

    def __init__(self, proxy: Proxy, models: Collection[str]) -> None:
        self._proxy = proxy
        self._new = Classes(proxy.known.prior)
        self._classes = {model: self._first(model) for model in models}

    @classmethod
    def of(cls, file: Path | None, models: Collection[str]) -> Self:
        """Return what a file knows of some models; without a file, the one that ships.

        Raises:
            FailedPrecondition: The file cannot be read, or is something else.
        """
        return cls(Proxy(file or DEFAULT), models)

    def predict(self, served_model: str, prompt: str, vector: Vector) -> Estimate:
        """Return what the proxy model says of a prompt. Blocks for ms; threads may share it."""
        classes = self._of(served_model)
        return classes.estimate(self._proxy.probabilities(prompt, vector, classes.edges_tokens))

    def prior(self, served_model: str) -> Estimate:
        """Return what can be said whatever the prompt."""
        return self._of(served_model).estimate()

    def class_of(self, served_model: str, tokens: float) -> int:
        """Return a length's class, 0..4, among the served model's own answers."""
        return self._of(served_model).class_of(tokens)

    def rank(self, served_model: str, expected_tokens: float) -> float | None:
        """Return where an expectation stands among the model's recent ones, 0..1."""
        classes = self._classes.get(served_model)
        return None if classes is None else classes.rank(expected_tokens)

    def edges_tokens(self, served_model: str) -> tuple[float, ...]:
        """Return the upper edges of the classes 0..3, tokens."""
        return self._of(served_model).edges_tokens

    def observe(self, served_model: str, said: Estimate | None, tokens: int) -> None:
        """Take in an answer's true length, and what had been said of it."""
        if served_model in self._classes:
            self._classes[served_model].observe(tokens, said.probabilities if said else ())

    def saved(self) -> dict[str, bytes]:
        """Return, by served model, what was learned."""
        return {model: classes.to_bytes() for model, classes in self._classes.items()}

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """Go on from what was learned before; what cannot be read counts for nothing."""
        for model in saved.keys() & self._classes.keys():
            try:
                self._classes[model] = Classes.from_bytes(saved[model], self._proxy.known.prior)
            except InvalidArgument:
                continue

    def _of(self, model: str) -> Classes:
        return self._classes.get(model, self._new)

    def _first(self, model: str) -> Classes:
        known = self._proxy.known
        if model in known.classes:
            return Classes.from_bytes(known.classes[model], known.prior)
        return Classes(known.prior)

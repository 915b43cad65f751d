"""Per served model: its length classes, calibrated for the proxy model."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from services.kit.errors import InvalidArgument
from services.predictor.adapters.proxy_model import DEFAULT, ProxyModel
from services.predictor.core.cache.vector_index import Vector
from services.predictor.core.estimate import Estimate
from services.predictor.core.length_classes import LengthClasses


class LengthModels:
    """The length classes of each served model, and the proxy model that predicts them from prompts.

    A model that the proxy was trained on starts with the lengths seen in training; any other starts
    with those of all training models together. Unknown models get these too, and learn nothing.

    Args:
        proxy: Predicts classes from prompts.
        models: Models whose answers are observed.
    """

    def __init__(self, proxy: ProxyModel, models: Collection[str]) -> None:
        self._proxy = proxy
        self._unknown = LengthClasses(proxy.known.prior)
        self._classes = {model: self._initial(model) for model in models}

    @classmethod
    def of(cls, file: Path | None, models: Collection[str]) -> Self:
        """Return the length models of a trained file, by default the one that ships.

        Raises:
            FailedPrecondition: The file cannot be read, or is not a predictor.
        """
        return cls(ProxyModel(file or DEFAULT), models)

    def predict(self, served_model: str, prompt: str, vector: Vector) -> Estimate:
        """Return the proxy model's estimate. Blocks for ms; thread-safe."""
        classes = self._of(served_model)
        return classes.estimate(self._proxy.probabilities(prompt, vector, classes.edges_tokens))

    def prior(self, served_model: str) -> Estimate:
        """Return the estimate without a prompt. Takes microseconds."""
        return self._of(served_model).estimate()

    def shortened(self, served_model: str, estimate: Estimate, max_tokens: float) -> Estimate:
        """Return an estimate of the same answer, cut off at `max_tokens`. Takes microseconds."""
        if estimate.source != "cache":
            return self._of(served_model).estimate(estimate.probabilities, max_tokens)
        return replace(
            estimate,
            expected_tokens=min(estimate.expected_tokens, max_tokens),
            class_=min(estimate.class_, self.class_of(served_model, max_tokens)),
            low_tokens=min(estimate.low_tokens, max_tokens),
            high_tokens=min(estimate.high_tokens, max_tokens),
        )

    def class_of(self, served_model: str, tokens: float) -> int:
        """Return a length's class, 0..4, among the served model's own answers."""
        return self._of(served_model).class_of(tokens)

    def rank(self, served_model: str, expected_tokens: float) -> float | None:
        """Return the share of the model's recent requests, 0..1, that expected shorter answers.

        Counts the request. None: too few were counted so far.
        """
        classes = self._classes.get(served_model)
        return None if classes is None else classes.rank(expected_tokens)

    def edges_tokens(self, served_model: str) -> tuple[float, ...]:
        """Return the upper edges of the classes 0..3, tokens."""
        return self._of(served_model).edges_tokens

    def observe(
        self,
        served_model: str,
        predicted: Estimate | None,
        tokens: int,
        *,
        truncated: bool = False,
    ) -> None:
        """Learn an answer's true length.

        Args:
            served_model: The model that answered.
            predicted: Estimate of the proxy model, where it ran.
            tokens: Length, tokens.
            truncated: Whether the answer was cut off there.
        """
        if served_model in self._classes:
            probabilities = predicted.probabilities if predicted else ()
            self._classes[served_model].observe(tokens, probabilities, truncated=truncated)

    def saved(self) -> dict[str, bytes]:
        """Return what was learned, by served model."""
        return {model: classes.to_bytes() for model, classes in self._classes.items()}

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """Continue from what was saved; unreadable entries are ignored."""
        for model in saved.keys() & self._classes.keys():
            with suppress(InvalidArgument):
                self._classes[model] = LengthClasses.from_bytes(
                    saved[model], self._proxy.known.prior
                )

    def _of(self, model: str) -> LengthClasses:
        return self._classes.get(model, self._unknown)

    def _initial(self, model: str) -> LengthClasses:
        known = self._proxy.known
        if model in known.classes:
            return LengthClasses.from_bytes(known.classes[model], known.prior)
        return LengthClasses(known.prior)

"""Per served model: its length classes, calibrated for the proxy model."""

from collections.abc import Collection, Mapping
from contextlib import suppress
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
    with those of all training models together, as do unknown models.

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

    def classes(self, served_model: str) -> LengthClasses:
        """Return a served model's length classes; of an unknown model nothing is to be learned."""
        return self._classes.get(served_model, self._unknown)

    def predict(self, served_model: str, prompt: str, vector: Vector) -> Estimate:
        """Return the proxy model's estimate. Blocks for ms; thread-safe."""
        classes = self.classes(served_model)
        return classes.estimate(self._proxy.probabilities(prompt, vector, classes.edges_tokens))

    def saved(self) -> dict[str, bytes]:
        """Return the learned state, by served model."""
        return {model: classes.to_bytes() for model, classes in self._classes.items()}

    def restore(self, saved: Mapping[str, bytes]) -> None:
        """Restore a saved state; unreadable entries are ignored."""
        for model in saved.keys() & self._classes.keys():
            with suppress(InvalidArgument):
                self._classes[model] = LengthClasses.from_bytes(
                    saved[model], self._proxy.known.prior
                )

    def _initial(self, model: str) -> LengthClasses:
        known = self._proxy.known
        if model in known.classes:
            return LengthClasses.from_bytes(known.classes[model], known.prior)
        return LengthClasses(known.prior)

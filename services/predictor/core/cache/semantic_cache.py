"""The semantic cache: lengths of the answers to the same prompt or to a similar one.

Prompts are identified by their keyed hash, so that an exact repeat costs a look-up; otherwise the
nearest vector counts, if it is near enough. Each served model has its own entries, and so has each
tenant that requests name; no text is kept.

Source: Qiu et al., "mu-Serve", ATC 2024, section 4.3 (there: cosine 0.8, no bound, no correction).
"""

from collections.abc import Collection, Mapping

from services.kit.config import PromptCache
from services.kit.units import BYTES_PER_MIB
from services.predictor.core.cache.lru_index import ENTRY_BYTES, Changes, LruIndex
from services.predictor.core.cache.vector_index import row_bytes


class SemanticCache:
    """Prompts by model.

    Args:
        models: Names of the models.
        settings: Bounds of the cache.
        size: Dimension of the vectors.

    Attributes:
        of: The prompts of each model.
    """

    def __init__(self, models: Collection[str], settings: PromptCache, size: int) -> None:
        self._settings = settings
        entry_bytes = ENTRY_BYTES + row_bytes(size)
        room = int(settings.max_mib * BYTES_PER_MIB) // entry_bytes // max(len(models), 1)
        capacity = max(min(settings.max_entries, room), 1)
        self.of: Mapping[str, LruIndex] = {
            model: LruIndex(capacity, size, settings.similarity) for model in models
        }

    def forget(self, model: str | None, unused_since_s: float) -> int:
        """Delete the entries last used before an instant; return how many.

        Args:
            model: Model of the entries; None: all models.
            unused_since_s: The instant, s since 1970; infinity: all entries.
        """
        indices = self.of.values() if model is None else [self.of[model]]
        return sum(index.drop_unused(unused_since_s) for index in indices)

    def expire(self, now_s: float) -> int:
        """Delete the entries that were unused for too long; return how many."""
        return self.forget(None, now_s - self._settings.max_unused_s)

    def take_changes(self) -> dict[str, Changes]:
        """Return the changes since the last call, by model."""
        found = {model: index.take_changes() for model, index in self.of.items()}
        return {model: each for model, each in found.items() if each.written or each.dropped}

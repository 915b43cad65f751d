"""The semantic cache: lengths of the answers to the same prompt or to a similar one.

Prompts are identified by their keyed hash, so that an exact repeat costs a look-up; otherwise the
nearest vector counts, if it is near enough. Each served model has its own entries, and so has each
tenant that requests name; no text is kept.

Source: Qiu et al., "mu-Serve", ATC 2024, section 4.3 (there: cosine 0.8, no bound, no correction).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any, Final, TypeVar, cast

from services.predictor.core.cache.answer_lengths import AnswerLengths
from services.predictor.core.cache.lru_index import Changes, Entry, LruIndex
from services.predictor.core.cache.vector_index import Vector, row_bytes

ENTRY_BYTES: Final = 900
"""Memory of an entry without its vector: key, lengths and indices. Unit: bytes."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the cache.

    Attributes:
        entries: Maximum number of entries of one model.
        size_bytes: Maximum memory of all models together, bytes.
        unused_s: Time after which an unused entry is deleted, s.
        similarity: Minimum cosine of prompts that count as similar, 0..1.
    """

    entries: int
    size_bytes: int
    unused_s: float
    similarity: float


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry found for a prompt.

    Attributes:
        key: Key of the entry.
        lengths: Lengths of the answers to its prompt.
        similarity: Cosine of the two prompts; 1.0: the same prompt.
    """

    key: bytes
    lengths: AnswerLengths
    similarity: float


def _synchronized(method: F) -> F:
    """Run one method at a time: searches run in threads, everything else on the loop."""

    @wraps(method)
    def locked(self: SemanticCache, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


class SemanticCache:
    """Lengths by model and prompt. Thread-safe.

    Args:
        models: Names of the models.
        bounds: Bounds of the cache.
        size: Dimension of the vectors.
    """

    def __init__(self, models: Collection[str], bounds: Bounds, size: int) -> None:
        self._bounds = bounds
        room = bounds.size_bytes // (ENTRY_BYTES + row_bytes(size)) // max(len(models), 1)
        capacity = max(min(bounds.entries, room), 1)
        self._indices: Mapping[str, LruIndex] = {
            model: LruIndex(capacity, size) for model in models
        }
        self._lock = Lock()

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self._indices)

    @_synchronized
    def exact(self, model: str, key: bytes, now_s: float) -> Hit | None:
        """Return the entry of this very prompt. Takes microseconds."""
        entry = self._indices[model].use(key, now_s)
        return None if entry is None else Hit(key, entry.lengths, 1.0)

    @_synchronized
    def near(self, model: str, vector: Vector, now_s: float, tenant: bytes = b"") -> Hit | None:
        """Return the entry of the tenant's nearest prompt, if it is near enough. Takes 0.2 ms."""
        index = self._indices[model]
        found = index.nearest(vector, tenant)
        if found is None or found[1] < self._bounds.similarity:
            return None
        key, similarity = found
        entry = index.use(key, now_s)
        return None if entry is None else Hit(key, entry.lengths, similarity)

    @_synchronized
    def learn(  # noqa: PLR0913 - what is known of one answer
        self,
        model: str,
        key: bytes,
        tokens: float,
        now_s: float,
        vector: Vector | None = None,
        *,
        truncated: bool = False,
    ) -> None:
        """Add one answer's length.

        Args:
            model: The model that answered.
            key: Key of the prompt.
            tokens: Length of the answer, tokens.
            now_s: Time, s since 1970.
            vector: Embedding of the prompt, where it was computed.
            truncated: Whether the answer was cut off there.
        """
        self._indices[model].learn(key, tokens, now_s, vector, truncated=truncated)

    @_synchronized
    def judge(self, model: str, key: bytes, *, right: bool) -> None:
        """Score the prediction that an entry gave for a similar prompt."""
        self._indices[model].judge(key, right=right)

    @_synchronized
    def forget(self, model: str | None, unused_since_s: float) -> int:
        """Delete the entries last used before an instant; return how many.

        Args:
            model: Model of the entries; None: all models.
            unused_since_s: The instant, s since 1970; infinity: all entries.
        """
        indices = self._indices.values() if model is None else [self._indices[model]]
        return sum(index.drop_unused(unused_since_s) for index in indices)

    def expire(self, now_s: float) -> int:
        """Delete the entries that were unused for too long; return how many."""
        return self.forget(None, now_s - self._bounds.unused_s)

    @_synchronized
    def restore(self, model: str, key: bytes, entry: Entry, vector: Vector | None) -> None:
        """Add a saved entry, least recently used first; entries of unknown models are ignored."""
        if model in self._indices:
            self._indices[model].restore(key, entry, vector)

    @_synchronized
    def take_changes(self) -> dict[str, tuple[Changes, dict[bytes, tuple[Entry, Vector | None]]]]:
        """Return the changes since the last call by model, with the entries to write."""
        found = {}
        for model, index in self._indices.items():
            changes = index.take_changes()
            entries = {
                key: (entry, None if (vector := index.vector(key)) is None else vector.copy())
                for key in changes.written
                if (entry := index.entry(key)) is not None
            }
            if entries or changes.dropped:
                found[model] = (changes, entries)
        return found

    @_synchronized
    def give_back(self, model: str, changes: Changes) -> None:
        """Add changes that could not be written to those of the next `take_changes`."""
        self._indices[model].give_back(changes)

    @_synchronized
    def holds(self, model: str, key: bytes) -> bool:
        """Return whether a prompt is known, without marking it as used."""
        return self._indices[model].entry(key) is not None

    def entries(self, model: str) -> int:
        """Return the number of known prompts of a model."""
        return len(self._indices[model])

    def size_bytes(self, model: str) -> int:
        """Return the approximate memory of a model's entries, bytes."""
        return self.entries(model) * ENTRY_BYTES + self._indices[model].vector_bytes

"""The semantic cache: how long answers to this prompt, or to one like it, were.

A prompt is known by its keyed hash: an exact repeat costs a look-up. Otherwise the nearest vector
tells, if it is near enough. Each served model has entries of its own; no prompt's text is kept.

Source: Qiu et al., "mu-Serve", ATC 2024, section 4.3 (there: cosine 0.8, no bound, no correction).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any, Final, TypeVar, cast

from services.predictor.core.cache.answer_lengths import Lengths
from services.predictor.core.cache.lru_index import Changes, Entry, Shelf
from services.predictor.core.cache.vector_index import Vector

ENTRY_BYTES: Final = 900
"""Memory of an entry beside its vector's components: key, lengths and places. Unit: bytes."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept.

    Attributes:
        entries: Of one model.
        size_bytes: Of all models together.
        unused_s: Time after which an entry that nobody asks about goes, s.
        similarity: Least cosine of prompts that count as alike, 0..1.
    """

    entries: int
    size_bytes: int
    unused_s: float
    similarity: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A known length.

    Attributes:
        key: Of the entry that tells it.
        lengths: What it tells.
        similarity: Cosine of the two prompts; 1.0: the same prompt.
    """

    key: bytes
    lengths: Lengths
    similarity: float


def _alone(method: F) -> F:
    """Searches run in threads, everything else on the loop: one at a time."""

    @wraps(method)
    def locked(self: SemanticCache, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


class SemanticCache:
    """Lengths by prompt, for each of some models. Safe to use from several threads.

    Args:
        models: Whose prompts are remembered; others are not known, and never will be.
        bounds: How much is kept.
        size: Components of a vector.
    """

    def __init__(self, models: Collection[str], bounds: Bounds, size: int) -> None:
        self._bounds = bounds
        self._entry_bytes = ENTRY_BYTES + 4 * size
        room = bounds.size_bytes // self._entry_bytes // max(len(models), 1)
        capacity = max(min(bounds.entries, room), 1)
        self._shelves: Mapping[str, Shelf] = {model: Shelf(capacity, size) for model in models}
        self._lock = Lock()

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose prompts are remembered."""
        return tuple(self._shelves)

    @_alone
    def exact(self, model: str, key: bytes, now_s: float) -> Hit | None:
        """Return what is known of this very prompt. Takes microseconds."""
        entry = self._shelves[model].use(key, now_s)
        return None if entry is None else Hit(key, entry.lengths, 1.0)

    @_alone
    def near(self, model: str, vector: Vector, now_s: float) -> Hit | None:
        """Return what is known of the nearest prompt, if it is near enough. Takes 0.2 ms."""
        shelf = self._shelves[model]
        found = shelf.nearest(vector)
        if found is None or found[1] < self._bounds.similarity:
            return None
        key, similarity = found
        entry = shelf.use(key, now_s)
        return None if entry is None else Hit(key, entry.lengths, similarity)

    @_alone
    def learn(
        self, model: str, key: bytes, tokens: float, now_s: float, vector: Vector | None = None
    ) -> None:
        """Take in one answer's length.

        Args:
            model: The model that answered.
            key: Of the prompt.
            tokens: Its answer's length, tokens.
            now_s: Seconds since 1970.
            vector: Of the prompt, where it was embedded.
        """
        self._shelves[model].learn(key, tokens, now_s, vector)

    @_alone
    def judge(self, model: str, key: bytes, *, right: bool) -> None:
        """Say whether the entry with `key` told a like prompt's length rightly."""
        self._shelves[model].judge(key, right=right)

    @_alone
    def forget(self, model: str | None, unused_since_s: float) -> int:
        """Delete what was last used before an instant; return how many entries that were.

        Args:
            model: Of this model; None: of all.
            unused_since_s: Seconds since 1970; infinity: everything.
        """
        shelves = self._shelves.values() if model is None else [self._shelves[model]]
        return sum(shelf.drop_unused(unused_since_s) for shelf in shelves)

    def expire(self, now_s: float) -> int:
        """Delete what nobody asked about for too long; return how many entries that were."""
        return self.forget(None, now_s - self._bounds.unused_s)

    @_alone
    def restore(self, model: str, key: bytes, entry: Entry, vector: Vector | None) -> None:
        """Put back what was kept, the longest unused first; of other models, nothing."""
        if model in self._shelves:
            self._shelves[model].restore(key, entry, vector)

    @_alone
    def take_changes(self) -> dict[str, tuple[Changes, dict[bytes, tuple[Entry, Vector | None]]]]:
        """Return, by model, what changed since this was last asked, with the entries written."""
        found = {}
        for model, shelf in self._shelves.items():
            changes = shelf.take_changes()
            entries = {
                key: (entry, None if (vector := shelf.vector(key)) is None else vector.copy())
                for key in changes.written
                if (entry := shelf.entry(key)) is not None
            }
            if entries or changes.dropped:
                found[model] = (changes, entries)
        return found

    @_alone
    def give_back(self, model: str, changes: Changes) -> None:
        """Take back changes that could not be written, so that they are asked for again."""
        self._shelves[model].give_back(changes)

    @_alone
    def holds(self, model: str, key: bytes) -> bool:
        """Tell whether a prompt is known; it does not count as used."""
        return self._shelves[model].entry(key) is not None

    def entries(self, model: str) -> int:
        """Return how many prompts of a model are known."""
        return len(self._shelves[model])

    def size_bytes(self, model: str) -> int:
        """Return about how much memory they take, bytes."""
        return self.entries(model) * self._entry_bytes

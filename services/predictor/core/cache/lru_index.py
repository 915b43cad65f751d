"""The prompts of one model: bounded, the least recently used are evicted first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from threading import Lock
from typing import Any, Final, TypeVar, cast

from services.predictor.core.cache.answer_lengths import AnswerLengths
from services.predictor.core.cache.vector_index import Vector, VectorIndex

ENTRY_BYTES: Final = 900
"""Memory of an entry without its vector: key, lengths and indices. Unit: bytes."""
_MIN_SCORE: Final = -2
_MAX_SCORE: Final = 4

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt that was answered.

    Attributes:
        lengths: Lengths of its answers.
        used_s: Time of its last request or answer, s since 1970.
        score: Right minus wrong predictions of similar prompts' lengths.
    """

    lengths: AnswerLengths
    used_s: float
    score: int = 0


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


@dataclass(frozen=True, slots=True)
class Changes:
    """Entries to write to disk, with copies of their vectors, and keys to delete from it."""

    written: Mapping[bytes, tuple[Entry, Vector | None]]
    dropped: set[bytes]


def _synchronized(method: F) -> F:
    """Run one method at a time: searches run in threads, everything else on the loop."""

    @wraps(method)
    def locked(self: LruIndex, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


class LruIndex:
    """Entries by key, some of them with a vector. Thread-safe.

    Args:
        capacity: Maximum number of entries, >= 1.
        size: Dimension of the vectors.
        similarity: Minimum cosine of prompts that count as similar, 0..1.
    """

    def __init__(self, capacity: int, size: int, similarity: float) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self._capacity, self._similarity = capacity, similarity
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()  # least recently used first
        self._vectors = VectorIndex(size, capacity)
        self._written: set[bytes] = set()
        self._dropped: set[bytes] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the entries, bytes."""
        return len(self) * ENTRY_BYTES + self._vectors.size_bytes

    @_synchronized
    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    @_synchronized
    def exact(self, key: bytes, now_s: float) -> Hit | None:
        """Return the entry of this very prompt, and mark it as used. Takes microseconds."""
        return self._used(key, now_s, 1.0)

    @_synchronized
    def near(self, vector: Vector, now_s: float, tenant: bytes = b"") -> Hit | None:
        """Return the entry of the tenant's nearest prompt, if it is near enough. Takes 0.2 ms."""
        found = self._vectors.nearest(vector, tenant)
        if found is None or found[1] < self._similarity:
            return None
        key, similarity = found
        return self._used(key, now_s, similarity)

    @_synchronized
    def learn(
        self,
        key: bytes,
        tokens: float,
        now_s: float,
        vector: Vector | None = None,
        *,
        truncated: bool = False,
    ) -> None:
        """Add one answer's length; evict entries beyond the capacity.

        An answer that was cut off makes no entry: what there is of it is not a length.

        Args:
            key: Key of the prompt.
            tokens: Length of the answer, tokens.
            now_s: Time, s since 1970.
            vector: Embedding of the prompt, where it was computed.
            truncated: Whether the answer was cut off there.
        """
        known = self._entries.get(key)
        if known is not None:
            lengths = known.lengths.updated(tokens, truncated=truncated)
            self._put(key, replace(known, lengths=lengths, used_s=now_s))
        elif truncated:
            return
        else:
            self._put(key, Entry(AnswerLengths.of(tokens), now_s))
        self._evict()
        if vector is not None and key not in self._vectors:
            self._vectors.put(key, vector)

    @_synchronized
    def restore(self, key: bytes, entry: Entry, vector: Vector | None) -> None:
        """Add a saved entry, which counts as no change; least recently used first."""
        self._entries[key] = entry
        self._evict()
        if vector is not None:
            self._vectors.put(key, vector)

    @_synchronized
    def judge(self, key: bytes, *, right: bool) -> None:
        """Score an entry's prediction for a similar prompt; drop it if mostly wrong."""
        known = self._entries.get(key)
        if known is None:
            return
        score = min(known.score + (1 if right else -1), _MAX_SCORE)
        if score <= _MIN_SCORE:
            self._drop(key)
        else:
            self._entries[key] = replace(known, score=score)
            self._written.add(key)

    @_synchronized
    def drop_unused(self, since_s: float) -> int:
        """Delete entries last used before `since_s`, s since 1970; return how many."""
        old = [key for key, entry in self._entries.items() if entry.used_s < since_s]
        for key in old:
            self._drop(key)
        return len(old)

    @_synchronized
    def take_changes(self) -> Changes:
        """Return the changes since the last call."""
        written, dropped = self._written, self._dropped
        self._written, self._dropped = set(), set()
        return Changes({key: (self._entries[key], self._vector(key)) for key in written}, dropped)

    @_synchronized
    def give_back(self, changes: Changes) -> None:
        """Add changes that could not be written to those of the next `take_changes`."""
        self._written |= changes.written.keys() & self._entries.keys()
        self._dropped |= changes.dropped - self._entries.keys()

    def _vector(self, key: bytes) -> Vector | None:
        return self._vectors.get(key).copy() if key in self._vectors else None

    def _used(self, key: bytes, now_s: float, similarity: float) -> Hit | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._put(key, replace(found, used_s=now_s))
        return Hit(key, found.lengths, similarity)

    def _put(self, key: bytes, entry: Entry) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self._written.add(key)
        self._dropped.discard(key)

    def _drop(self, key: bytes) -> None:
        del self._entries[key]
        self._vectors.drop(key)
        self._written.discard(key)
        self._dropped.add(key)

    def _evict(self) -> None:
        while len(self._entries) > self._capacity:
            self._drop(next(iter(self._entries)))

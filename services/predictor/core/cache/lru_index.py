"""The prompts of one model: bounded, the least recently used are evicted first."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from services.predictor.core.cache.answer_lengths import AnswerLengths
from services.predictor.core.cache.vector_index import Vector, VectorIndex

_MIN_SCORE: Final = -2
_MAX_SCORE: Final = 4


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


@dataclass(slots=True)
class Changes:
    """Keys to write to disk, and to delete from it."""

    written: set[bytes] = field(default_factory=set)
    dropped: set[bytes] = field(default_factory=set)


class LruIndex:
    """Entries by key, some of them with a vector.

    Args:
        capacity: Maximum number of entries, >= 1.
        size: Dimension of the vectors.
    """

    def __init__(self, capacity: int, size: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self._capacity = capacity
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()  # least recently used first
        self._vectors = VectorIndex(size, capacity)
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def entry(self, key: bytes) -> Entry | None:
        """Return an entry without marking it as used."""
        return self._entries.get(key)

    def vector(self, key: bytes) -> Vector | None:
        """Return the vector of an entry, if it has one."""
        return self._vectors.get(key) if key in self._vectors else None

    def use(self, key: bytes, now_s: float) -> Entry | None:
        """Return an entry and mark it as used."""
        found = self._entries.get(key)
        if found is not None:
            self._put(key, replace(found, used_s=now_s))
        return found

    @property
    def vector_bytes(self) -> int:
        """Memory of the vectors, bytes."""
        return self._vectors.size_bytes

    def nearest(self, vector: Vector, tenant: bytes) -> tuple[bytes, float] | None:
        """Return the key of the tenant's entry with the nearest vector, and its cosine."""
        return self._vectors.nearest(vector, tenant)

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

    def restore(self, key: bytes, entry: Entry, vector: Vector | None) -> None:
        """Add a saved entry, which counts as no change; least recently used first."""
        self._entries[key] = entry
        self._evict()
        if vector is not None:
            self._vectors.put(key, vector)

    def judge(self, key: bytes, *, right: bool) -> None:
        """Score an entry's prediction for a similar prompt; drop it if mostly wrong."""
        known = self._entries.get(key)
        if known is None:
            return
        score = min(known.score + (1 if right else -1), _MAX_SCORE)
        if score <= _MIN_SCORE:
            self.drop(key)
        else:
            self._entries[key] = replace(known, score=score)
            self._changes.written.add(key)

    def drop(self, key: bytes) -> None:
        """Delete an entry, if there is one, and its vector."""
        if self._entries.pop(key, None) is not None:
            self._vectors.drop(key)
            self._changes.written.discard(key)
            self._changes.dropped.add(key)

    def drop_unused(self, since_s: float) -> int:
        """Delete entries last used before `since_s`; return how many."""
        old = [key for key, entry in self._entries.items() if entry.used_s < since_s]
        for key in old:
            self.drop(key)
        return len(old)

    def take_changes(self) -> Changes:
        """Return the changes since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    def give_back(self, changes: Changes) -> None:
        """Add changes that could not be written to those of the next `take_changes`."""
        self._changes.written |= {key for key in changes.written if key in self._entries}
        self._changes.dropped |= {key for key in changes.dropped if key not in self._entries}

    def _put(self, key: bytes, entry: Entry) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self._changes.written.add(key)
        self._changes.dropped.discard(key)

    def _evict(self) -> None:
        while len(self._entries) > self._capacity:
            self.drop(next(iter(self._entries)))

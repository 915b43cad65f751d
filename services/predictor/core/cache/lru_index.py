"""What is remembered of one model's prompts: bounded, the longest unused goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from services.predictor.core.cache.answer_lengths import Lengths
from services.predictor.core.cache.vector_index import Vector, Vectors

_LEAST_STANDING: Final = -2
_BEST_STANDING: Final = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt that was answered.

    Attributes:
        lengths: How long its answers were.
        used_s: When it was last asked about or answered, s since 1970.
        standing: How often it told the length of a like prompt rightly, less how often wrongly.
    """

    lengths: Lengths
    used_s: float
    standing: int = 0


@dataclass(slots=True)
class Changes:
    """Keys to write to, and to delete from, where entries outlive the process."""

    written: set[bytes] = field(default_factory=set)
    dropped: set[bytes] = field(default_factory=set)


class Shelf:
    """Entries by key, and the vectors of those that have one.

    Args:
        capacity: Most entries, >= 1.
        size: Components of a vector.
    """

    def __init__(self, capacity: int, size: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self._capacity = capacity
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()  # the longest unused first
        self._vectors = Vectors(size)
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def entry(self, key: bytes) -> Entry | None:
        """Return an entry; it does not count as used."""
        return self._entries.get(key)

    def vector(self, key: bytes) -> Vector | None:
        """Return an entry's vector, if it has one."""
        return self._vectors.get(key) if key in self._vectors else None

    def use(self, key: bytes, now_s: float) -> Entry | None:
        """Return an entry, used now."""
        found = self._entries.get(key)
        if found is not None:
            self._put(key, replace(found, used_s=now_s))
        return found

    def nearest(self, vector: Vector) -> tuple[bytes, float] | None:
        """Return the key of the entry with the nearest vector, and its cosine."""
        return self._vectors.nearest(vector)

    def learn(self, key: bytes, tokens: float, now_s: float, vector: Vector | None = None) -> None:
        """Take in one answer's length; make room where there is none."""
        known = self._entries.get(key)
        if known is None:
            self._put(key, Entry(Lengths.of(tokens), now_s))
        else:
            self._put(key, replace(known, lengths=known.lengths.then(tokens), used_s=now_s))
        if vector is not None and key not in self._vectors:
            self._vectors.put(key, vector)
        self._make_room()

    def restore(self, key: bytes, entry: Entry, vector: Vector | None) -> None:
        """Put back what was kept; nothing has changed by that. The longest unused comes first."""
        self._entries[key] = entry
        if vector is not None:
            self._vectors.put(key, vector)
        self._make_room()

    def judge(self, key: bytes, *, right: bool) -> None:
        """An entry told the length of a like prompt; one that is mostly wrong is dropped."""
        known = self._entries.get(key)
        if known is None:
            return
        standing = min(known.standing + (1 if right else -1), _BEST_STANDING)
        if standing <= _LEAST_STANDING:
            self.drop(key)
        else:
            self._entries[key] = replace(known, standing=standing)
            self._changes.written.add(key)

    def drop(self, key: bytes) -> None:
        """Delete an entry, if there is one, and its vector."""
        if self._entries.pop(key, None) is not None:
            self._vectors.drop(key)
            self._changes.written.discard(key)
            self._changes.dropped.add(key)

    def drop_unused(self, since_s: float) -> int:
        """Delete what was last used before `since_s`; return how many entries that were."""
        old = [key for key, entry in self._entries.items() if entry.used_s < since_s]
        for key in old:
            self.drop(key)
        return len(old)

    def take_changes(self) -> Changes:
        """Return what changed since this was last asked."""
        changes, self._changes = self._changes, Changes()
        return changes

    def give_back(self, changes: Changes) -> None:
        """Take back changes that could not be written, so that they are asked for again."""
        self._changes.written |= {key for key in changes.written if key in self._entries}
        self._changes.dropped |= {key for key in changes.dropped if key not in self._entries}

    def _put(self, key: bytes, entry: Entry) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        self._changes.written.add(key)
        self._changes.dropped.discard(key)

    def _make_room(self) -> None:
        while len(self._entries) > self._capacity:
            self.drop(next(iter(self._entries)))

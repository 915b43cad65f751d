"""The names of a file's lines: whether one comes twice, in little memory."""

from __future__ import annotations

import hashlib
import secrets
from array import array
from typing import Final

_SHARDS: Final = 256
"""Tables; each grows by itself, so that no growth takes long."""

_FIRST: Final = 16
_KEY_BYTES: Final = 16


class Seen:
    """Names as digests of 64 bits in open addressing: at most 32 bytes each, where a set takes 100.

    Two of a million names are alike by chance once in 30 million files. The digests' key is drawn:
    else names can be chosen that all begin at one place of a table.
    """

    def __init__(self) -> None:
        self._tables = [array("Q", bytes(8 * _FIRST)) for _ in range(_SHARDS)]
        self._counts = [0] * _SHARDS
        self._key = secrets.token_bytes(_KEY_BYTES)

    def add(self, name: str) -> bool:
        """Add a name; return whether it is new."""
        found = hashlib.blake2b(name.encode(), digest_size=8, key=self._key)
        digest = int.from_bytes(found.digest(), "little")
        shard, digest = digest % _SHARDS, digest or 1
        if not _put(self._tables[shard], digest):
            return False
        self._counts[shard] += 1
        if 2 * self._counts[shard] > len(self._tables[shard]):
            self._grow(shard)
        return True

    def _grow(self, shard: int) -> None:
        before = self._tables[shard]
        after = self._tables[shard] = array("Q", bytes(16 * len(before)))
        for digest in before:
            if digest:
                _put(after, digest)


def _put(table: array[int], digest: int) -> bool:
    """Put a digest into a table that has room; return whether it was not there."""
    mask = len(table) - 1
    at = digest // _SHARDS & mask
    while (there := table[at]) != 0:
        if there == digest:
            return False
        at = at + 1 & mask
    table[at] = digest
    return True

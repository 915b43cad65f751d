"""Fixed-size records in shared memory that one process writes and any process reads.

A record is kept twice. The writer overwrites the older copy, so that a reader always finds a whole
one, even where the writer was killed in the middle; a checksum shows a whole copy from a torn one
without relying on the machine's memory ordering.
"""

import struct
import zlib
from mmap import mmap
from typing import Any

_HEAD = struct.Struct("<QI")  # sequence, checksum of sequence and payload
_ZEROS = bytes(_HEAD.size)
_TRIES = 100


class Record:
    """One record at a place in shared memory.

    Args:
        memory: The mapping.
        offset: Where the record begins.
        layout: Of the payload.
    """

    def __init__(self, memory: mmap, offset: int, layout: struct.Struct) -> None:
        self._memory = memory
        self._layout = layout
        copy_bytes = _HEAD.size + layout.size
        self._offsets = (offset, offset + copy_bytes)

    @staticmethod
    def size(layout: struct.Struct) -> int:
        """Return the bytes that a record takes."""
        return 2 * (_HEAD.size + layout.size)

    def write(self, *values: object) -> None:
        """Replace the record; only one process may ever write at a time."""
        sequence = max(self._copies())[0] + 1
        payload = self._layout.pack(*values)
        checksum = zlib.crc32(payload, zlib.crc32(sequence.to_bytes(8, "little")))
        start = self._offsets[sequence % 2]
        self._memory[start : start + _HEAD.size + len(payload)] = (
            _HEAD.pack(sequence, checksum) + payload
        )

    def read(self) -> tuple[Any, ...] | None:
        """Return the newest whole record, or None where none was ever written."""
        if self._blank():
            return None
        seen = 0
        for _ in range(_TRIES):
            first, second = self._copies()
            sequence, payload = max(first, second)
            # With one copy torn, the whole one may be stale: a writer can pass a reader that was
            # descheduled between the two. Found twice, it is the newest.
            if sequence and ((first[0] and second[0]) or sequence == seen):
                return self._layout.unpack(payload)
            if not sequence and self._blank():
                return None
            seen = sequence
        return None

    @property
    def damaged(self) -> bool:
        """True if neither copy is whole, though one was written."""
        whole = max(self._copies())[0] > 0
        # A writer may have been met twice; the record is whole between its writes.
        return not whole and not self._blank() and self.read() is None

    def _copies(self) -> list[tuple[int, bytes]]:
        """Return sequence and payload of each copy; of one that is torn, 0 and nothing."""
        copies = []
        for offset in self._offsets:
            data = self._memory[offset : offset + _HEAD.size + self._layout.size]
            sequence, checksum = _HEAD.unpack_from(data)
            payload = data[_HEAD.size :]
            whole = checksum == zlib.crc32(payload, zlib.crc32(sequence.to_bytes(8, "little")))
            copies.append((sequence, payload) if whole else (0, b""))
        return copies

    def _blank(self) -> bool:
        first, second = self._offsets
        memory, size = self._memory, _HEAD.size
        return memory[first : first + size] == memory[second : second + size] == _ZEROS

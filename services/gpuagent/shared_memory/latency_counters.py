"""Latencies, counted by size in shared memory: a worker counts its own, the agent reads them.

Each count is one aligned word that one process writes, and it only grows: no lock, and a reader
finds at worst the newest request not yet counted. Sizes grow by 4 %, so a latency read back is
within 2 % of the true one. Source of the idea: DDSketch (Masson, Rim, Lee, VLDB 2019).
"""

import math
import struct
from mmap import mmap
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.uint64]
"""Shape (SIZES,): requests by latency."""

T = TypeVar("T", np.uint64, np.float64)

SIZES: Final = 320
SHORTEST_S: Final = 0.25e-3
"""All shorter latencies are as this one."""

_GROWTH: Final = 1.04
_PER_FACTOR_E: Final = 1.0 / math.log(_GROWTH)
_TINY: Final = 1e-9
_WORD: Final = struct.Struct("Q")  # native: one copy of 8 bytes, where "<Q" would write singly


class LatencyCounters:
    """The counts of one ledger slot.

    Args:
        memory: The mapping.
        offset: Where the counts begin; a multiple of 8.
    """

    BYTES: Final = SIZES * _WORD.size

    def __init__(self, memory: mmap, offset: int) -> None:
        self._memory = memory
        self._offset = offset

    def add(self, latency_s: float) -> None:
        """Count one request; only the slot's worker may."""
        place = self._offset + _WORD.size * size_of(latency_s)
        (count,) = _WORD.unpack_from(self._memory, place)
        _WORD.pack_into(self._memory, place, count + 1)

    def read(self) -> Counts:
        """Return the counts since the file was made."""
        data = self._memory[self._offset : self._offset + self.BYTES]
        return np.frombuffer(data, np.uint64)


def size_of(latency_s: float) -> int:
    """Return the place of a latency among the counts, 0 <= place < SIZES."""
    if latency_s <= SHORTEST_S:
        return 0
    return min(1 + int(_PER_FACTOR_E * math.log(latency_s / SHORTEST_S)), SIZES - 1)


def largest_s(counts: NDArray[Any], rank: float) -> float:
    """Return the latency that is `rank`-th from the largest, s.

    Args:
        counts: At least `rank` of them.
        rank: 1: the largest.
    """
    at_least = np.cumsum(counts[::-1])
    place = SIZES - 1 - int(np.searchsorted(at_least, rank))
    # The middle of the range that counts as this size.
    return SHORTEST_S if place == 0 else SHORTEST_S * math.pow(_GROWTH, place - 0.5)


def stretched(counts: NDArray[T], factor: float) -> NDArray[T]:
    """Return counts as they were if all requests had taken `factor` times as long, or a bit more.

    Args:
        counts: Requests by latency.
        factor: > 0.
    """
    places = math.ceil(_PER_FACTOR_E * math.log(factor) - _TINY)
    if places == 0:
        return counts
    places = max(min(places, SIZES - 1), 1 - SIZES)
    moved = np.zeros_like(counts)
    if places > 0:
        moved[places:] = counts[:-places]
        moved[-1] += counts[-places:].sum()
    else:
        moved[:places] = counts[-places:]
        moved[0] += counts[:-places].sum()
    return moved

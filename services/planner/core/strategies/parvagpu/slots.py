"""Where the slices of a GPU type may be, best places first (ParvaGPU, SC'24, section III-E).

The paper lists its preferences for the A100: size 3 in slot 4, not 0; size 2 in slots 0 and 2, not
4; size 1 from slot 0. They follow from one rule that holds for any geometry: a slice goes where it
blocks fewest places of the smallest kind, then to the lowest start. Only starts that the driver
allows count, so that no two segments ever overlap (the paper's slot 5 for size 2 does not exist).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from services.kit.mig import Geometry, SliceKind


@dataclass(frozen=True, slots=True)
class Spot:
    """A place for a slice on a GPU.

    Attributes:
        start: First memory slice.
        mask: The memory slices it takes, one bit each.
    """

    start: int
    mask: int


@dataclass(frozen=True, slots=True)
class Size:
    """A slice kind, as the allocator sees it.

    Attributes:
        profile: The kind's name.
        gpcs: Compute slices.
        memory_slices: Memory slices.
        spots: Where it may be, best first.
        thrifty: Those of `spots` that block fewest places of the smallest kind.
    """

    profile: str
    gpcs: int
    memory_slices: int
    spots: tuple[Spot, ...]
    thrifty: tuple[Spot, ...]


@lru_cache(maxsize=64)
def sizes(geometry: Geometry) -> Mapping[str, Size]:
    """Return the sizes of a geometry by name.

    A kind of which the driver allows fewer than its places would hold (those with media engines)
    is left out: then free memory slices alone determine where a slice fits.
    """
    smallest = min(kind.memory_slices for kind in geometry.kinds)
    small_starts = {
        start for kind in geometry.kinds if kind.memory_slices == smallest for start in kind.starts
    }
    return {
        kind.name: _size(kind, small_starts)
        for kind in geometry.kinds
        if kind.max_count >= _most(kind)
    }


def _size(kind: SliceKind, small_starts: set[int]) -> Size:
    blocked = {
        start: len(small_starts.intersection(range(start, start + kind.memory_slices)))
        for start in kind.starts
    }
    mask = (1 << kind.memory_slices) - 1
    spots = {
        start: Spot(start, mask << start)
        for start in sorted(kind.starts, key=lambda start: (blocked[start], start))
    }
    fewest = min(blocked.values())
    return Size(
        profile=kind.name,
        gpcs=kind.compute_slices,
        memory_slices=kind.memory_slices,
        spots=tuple(spots.values()),
        thrifty=tuple(spot for start, spot in spots.items() if blocked[start] == fewest),
    )


def _most(kind: SliceKind) -> int:
    """Return how many slices of one kind do not overlap."""
    number, free_from = 0, 0
    for start in sorted(kind.starts):
        if start >= free_from:
            number, free_from = number + 1, start + kind.memory_slices
    return number

"""MIG geometry: which slices fit on one GPU together.

NVIDIA's rule: a GPU has memory slices in a row (8 on A100 and H100, 4 on A30); a slice kind takes
a run of them from one of its allowed starts; a layout is valid iff no two runs overlap. Kinds,
starts and sizes come from the driver (`nvidia-smi mig -lgip`, `-lgipp`), never from arithmetic on
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile

MOST_LAYOUTS: Final = 1024
"""Most layouts that are enumerated for a GPU type."""

WHOLE = "whole"
"""Kind of the only slice of a GPU without MIG."""

GPUS_TOGETHER: Final = (1, 2, 4, 8, 16)
"""Numbers of GPUs that a segment may hold: each divides the next, so that nodes fill up."""


Layout = tuple[Placement, ...]
"""The slices of one GPU, in order of start."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The slices that a GPU type can be divided into.

    Attributes:
        memory_slices: Memory slices of the whole GPU.
        kinds: Slice kinds.
    """

    memory_slices: int
    kinds: tuple[SliceProfile, ...]

    def kind(self, name: str) -> SliceProfile:
        """Return the kind called `name`.

        Raises:
            KeyError: This GPU type has no such kind.
        """
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise KeyError(name)

    def span(self, placement: Placement) -> range:
        """Return the memory slices that `placement` takes."""
        size = self.kind(placement.profile).memory_slices
        return range(placement.start, placement.start + size)

    def overlap(self, one: Placement, other: Placement) -> bool:
        """Return whether two placements cannot exist together."""
        a, b = self.span(one), self.span(other)
        return a.start < b.stop and b.start < a.stop

    def problem(self, layout: Iterable[Placement]) -> str:
        """Return why `layout` is invalid, or ""."""
        taken: dict[int, Placement] = {}
        counts: Counter[str] = Counter()
        for placement in layout:
            known = {kind.name: kind for kind in self.kinds}
            kind = known.get(placement.profile)
            if kind is None:
                return f"no profile {placement.profile!r}; this GPU has {', '.join(known)}"
            if placement.start not in kind.starts:
                return f"{placement} may start at {kind.starts} only"
            counts[kind.name] += 1
            if counts[kind.name] > kind.max_count:
                return f"at most {kind.max_count} x {kind.name} on one GPU"
            for memory_slice in self.span(placement):
                if memory_slice in taken:
                    return f"{placement} overlaps {taken[memory_slice]}"
                taken[memory_slice] = placement
        return ""


@lru_cache(maxsize=64)
def full_layouts(geometry: Geometry) -> tuple[Layout, ...]:
    """Return every layout to which no slice can be added, by position, in a fixed order.

    Raises:
        ValueError: There are more than MOST_LAYOUTS; GPUs have up to 30, CPU cores 677.
    """
    found = tuple(islice(_layouts(geometry), MOST_LAYOUTS + 1))
    if len(found) > MOST_LAYOUTS:
        raise ValueError(f"a GPU type has more than {MOST_LAYOUTS} layouts")
    return found


def _layouts(geometry: Geometry) -> Iterator[Layout]:
    places = [_Place.of(geometry, kind, start) for kind in geometry.kinds for start in kind.starts]

    def extend(layout: tuple[_Place, ...], first_free: int) -> Iterator[tuple[_Place, ...]]:
        counts, taken = Counter(place.kind.name for place in layout), sum(p.bits for p in layout)
        fitting = [place for place in places if place.fits(taken, counts)]
        if not fitting:
            yield layout
        for place in fitting:
            # A skipped placement stays free and may take a slice: such a layout is not full.
            skipped = range(first_free, place.start)
            if place.start >= first_free and not any(each.wasted(skipped) for each in places):
                yield from extend((*layout, place), place.stop)

    for layout in extend((), 0):
        yield tuple(Placement(each.kind.name, each.start) for each in layout)


@dataclass(frozen=True, slots=True)
class _Place:
    """A possible position of a slice.

    Attributes:
        kind: Its kind.
        start, stop: Its memory slices.
        bits: The same, a bit for each.
        unbounded: Whether `max_count` is implied by slices not overlapping.
    """

    kind: SliceProfile
    start: int
    stop: int
    bits: int
    unbounded: bool

    @classmethod
    def of(cls, geometry: Geometry, kind: SliceProfile, start: int) -> _Place:
        bits = ((1 << kind.memory_slices) - 1) << start
        unbounded = kind.max_count * kind.memory_slices >= geometry.memory_slices
        return cls(kind, start, start + kind.memory_slices, bits, unbounded)

    def fits(self, taken: int, counts: Mapping[str, int]) -> bool:
        return not self.bits & taken and counts[self.kind.name] < self.kind.max_count

    def wasted(self, free: range) -> bool:
        """Return whether it fits into the free memory slices, whatever the count of its kind."""
        return self.unbounded and free.start <= self.start and self.stop <= free.stop


@lru_cache(maxsize=64)
def maximal_layouts(geometry: Geometry) -> tuple[Layout, ...]:
    """Return one layout for each maximal multiset of kinds, in a fixed order.

    A multiset is maximal if no other layout's multiset contains it: whatever fits on the GPU fits
    into one of these. MIG isolates slices, so positions do not matter to a plan.
    """
    by_counts: dict[frozenset[tuple[str, int]], Layout] = {}
    for layout in full_layouts(geometry):
        counts = Counter(placement.profile for placement in layout)
        by_counts.setdefault(frozenset(counts.items()), layout)
    candidates = [(Counter(dict(key)), layout) for key, layout in by_counts.items()]
    return tuple(
        layout
        for counts, layout in sorted(candidates, key=lambda candidate: candidate[1])
        if not any(counts < other for other, _ in candidates)
    )

"""Geometry of a machine's cores, as MIG's: a core stands for a memory slice.

Slices of c cores are called "<c>c". So that layouts stay few, and can be enumerated:

- up to 8 cores every size may start anywhere: InfAdapter's own problem (at most 128 layouts);
- above, sizes are powers of two that start at multiples of themselves, from 1 core (from 2 cores
  above 16, from 4 above 32, and so on), and the whole machine (at most 677 layouts). Sizes in
  between take several slices.
"""

from collections.abc import Iterator
from typing import Final

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.mig import Geometry

FREE_UP_TO: Final = 8
"""Cores up to which every size may start anywhere."""

UNITS: Final = 16
"""Smallest slices that a machine is cut into at most."""


def name(cores: int) -> str:
    """Return the GPU type's name of so many cores."""
    return f"cpu-{cores}"


def geometry(cores: int, memory_bytes: int) -> Geometry:
    """Return what `cores` cores can be cut into; every slice has its share of the memory.

    Args:
        cores: At least 1.
        memory_bytes: Of the machine.
    """
    return Geometry(
        memory_slices=cores,
        kinds=tuple(
            SliceProfile(
                name=f"{size}c",
                compute_slices=size,
                memory_slices=size,
                starts=tuple(range(0, cores - size + 1, 1 if cores <= FREE_UP_TO else size)),
                max_count=cores // size,
                sm_count=size,
                memory_bytes=memory_bytes * size // cores,
            )
            for size in _sizes(cores)
        ),
    )


def _sizes(cores: int) -> Iterator[int]:
    if cores <= FREE_UP_TO:
        yield from range(1, cores + 1)
        return
    size = 1
    while size * UNITS < cores:
        size *= 2
    while size < cores:
        yield size
        size *= 2
    yield cores

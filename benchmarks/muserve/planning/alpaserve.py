"""AlpaServe's way with one group (OSDI'23): every model is a pipeline over all of its devices.

Stage boundaries come from an exact dynamic programme: of all ways to cut a chain of partitions into
stages, the one whose slowest stage is fastest.
"""

from collections.abc import Sequence
from functools import cache

from benchmarks.muserve.planning.model import Device, Partition, Served


def balanced(partitions: Sequence[Partition], stages: int) -> tuple[tuple[Partition, ...], ...]:
    """Cut a chain into at most so many stages, so that the longest is as short as can be.

    Args:
        partitions: In order; each stays whole.
        stages: >= 1; fewer come out where there are fewer partitions.
    """
    size = len(partitions)

    @cache
    def best(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        """Return the longest stage from `start` on, s, and where the stages end."""
        if left == 1:
            return sum(each.latency_s for each in partitions[start:]), (size,)
        found = []
        for end in range(start + 1, size - left + 2):
            first_s = sum(each.latency_s for each in partitions[start:end])
            rest_s, ends = best(end, left - 1)
            found.append((max(first_s, rest_s), (end, *ends)))
        return min(found)

    _, ends = best(0, min(stages, size))
    return tuple(tuple(partitions[start:end]) for start, end in zip((0, *ends), ends, strict=False))


def spread(model: Served, devices: Sequence[Device]) -> dict[Partition, Device]:
    """Return which device of a group each partition of a model goes to: stage i to device i."""
    stages = balanced(model.partitions, len(devices))
    return {
        partition: device
        for stage, device in zip(stages, devices, strict=False)
        for partition in stage
    }

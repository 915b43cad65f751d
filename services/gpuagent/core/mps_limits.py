"""MPS limits of the processes that share a slice. Pure."""

from collections.abc import Sequence
from typing import Final

from cinquefoil.gpuagent.v1.records import MpsLimit, SegmentSpec
from services.kit.units import BYTES_PER_MIB

ALL_THREADS: Final = 100


def limits_of(spec: SegmentSpec) -> tuple[MpsLimit, ...]:
    """Return one limit per process: those requested, or equal shares without bound on memory.

    Shares are rounded down, as NVIDIA's device plugin does (`100/replicas`).
    """
    return spec.limits or (MpsLimit(ALL_THREADS // spec.processes),) * spec.processes


def thread_shares(spec: SegmentSpec) -> tuple[float, ...]:
    """Return each process's part of its slice's SMs while all are busy, 0..1; at most 1 in sum."""
    percentages = [limit.thread_percentage for limit in limits_of(spec)]
    return tuple(each / max(ALL_THREADS, sum(percentages)) for each in percentages)


def ceiling_of(limits: Sequence[MpsLimit]) -> MpsLimit:
    """Return the least limit that holds all of `limits`; a process can only narrow its daemon's."""
    bounded = all(limit.memory_bytes for limit in limits)
    return MpsLimit(
        max(limit.thread_percentage for limit in limits),
        max(limit.memory_bytes for limit in limits) if bounded else 0,
    )


def memory_value(limit: MpsLimit) -> str:
    """Return a bound on memory as MPS writes it, "512M"; "" where there is none.

    At least 1M: MPS would take 0 for no bound.
    """
    return f"{max(1, limit.memory_bytes // BYTES_PER_MIB)}M" if limit.memory_bytes else ""

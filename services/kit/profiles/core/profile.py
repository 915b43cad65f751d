"""The interface between a variant and the hardware."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from cinquefoil.gpuagent.v1.records import Performance


@dataclass(frozen=True, slots=True)
class SliceShape:
    """A slice as profiles need it.

    Attributes:
        gpu: GPU type, for example "a100-40gb".
        profile: Slice kind, for example "3g.20gb" or "whole".
        compute_slices: GPCs.
        sm_count: Streaming multiprocessors of the slice.
        gpu_sm_count: Streaming multiprocessors of the whole GPU.
        memory_bytes: Memory of the slice.
        context_power_w: Power of the whole GPU with a CUDA context and nothing computed, W.
        max_power_w: Default power limit of the whole GPU, W.
        performance: How fast the whole GPU is; None: it is CPU cores, or nothing is known of it.
        core_gmacs_per_s: CPU cores only: multiply-accumulates of one core, measured, 1e9/s.
    """

    gpu: str
    profile: str
    compute_slices: int
    sm_count: int
    gpu_sm_count: int
    memory_bytes: int
    context_power_w: float
    max_power_w: float
    performance: Performance | None = None
    core_gmacs_per_s: float = 0.0

    @property
    def gpus(self) -> int:
        """Whole GPUs that it is; 1 for a slice of one."""
        return max(round(self.sm_count / self.gpu_sm_count), 1)


@dataclass(frozen=True, slots=True)
class BatchCost:
    """Latency and energy of one batch while every process of the segment is busy.

    Attributes:
        latency_s: Time of one batch, s.
        energy_j: Active energy of one batch, beyond the GPU's power with a context, J.
    """

    latency_s: float
    energy_j: float

    @property
    def power_w(self) -> float:
        """Active power that one process draws while its batch runs, W."""
        return self.energy_j / self.latency_s


class Profile(Protocol):
    """Latency and power of a variant on any slice; it never changes."""

    def __hash__(self) -> int:
        """Return a hash, so that values derived from the profile can be cached."""
        ...

    @property
    def method(self) -> Literal["model", "table"]:
        """Origin of the numbers."""
        ...

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; None: it does not fit, or was not measured.

        Args:
            shape: The slice.
            batch_size: Items in the batch, >= 1.
            processes: Processes that run batches on the slice at the same time, >= 1.
            clock_ratio: SM clock over the GPU's highest, 0 < ratio <= 1.
        """
        ...


Times = tuple[tuple[float, ...], ...]


def batch_times_s(
    batch: Callable[[int, int], BatchCost | None], batch_size: int, processes: int
) -> Times:
    """Return the times of a segment's batches, s.

    What was never measured is taken to be as long as the next larger batch that was, or as with the
    next more processes.

    Args:
        batch: Cost of a batch of so many items while so many processes run.
        batch_size: Of the segment, items.
        processes: Of the segment.

    Returns:
        Of one item, of half a batch (rounded up) and of a full one, each while 1, 2, .. processes
        run; empty: a full batch was never measured.
    """

    def time_s(items: int, busy: int) -> float | None:
        if (cost := batch(items, busy)) is not None:  # nearly always
            return cost.latency_s
        tried = (
            batch(number, running)
            for running in range(busy, processes + 1)
            for number in range(items, batch_size + 1)
        )
        return next((cost.latency_s for cost in tried if cost is not None), None)

    sizes = (1, (batch_size + 1) // 2, batch_size)
    found = [[time_s(items, busy) for busy in range(1, processes + 1)] for items in sizes]
    known = tuple(tuple(each for each in times if each is not None) for times in found)
    return known if all(len(each) == processes for each in known) else ()

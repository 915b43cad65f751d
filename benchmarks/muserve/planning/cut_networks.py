"""Stages that `services.planner.core.partitioning` cut from networks, as partitions to place."""

from benchmarks.muserve.planning.model import Partition
from services.planner.core.partitioning.model import Partitioning


def partitions(
    cut: Partitioning, *, batches: float = 1.0, link_bytes_per_s: float
) -> tuple[Partition, ...]:
    """Return the stages of a network, as a placement weighs them.

    Args:
        cut: The network. Sensitivities mean what a deployment's `clock_sensitivity` does.
        batches: That a request consists of, one after the other; each of the graph's batch size.
        link_bytes_per_s: Between two devices.
    """
    return tuple(
        Partition(
            model=stage.model,
            index=stage.index,
            memory_bytes=stage.memory_bytes,
            latency_s=batches * stage.latency_s,
            sensitivity=stage.clock_sensitivity,
            transfer_s=batches * stage.transfer_bytes / link_bytes_per_s,
        )
        for stage in cut.stages
    )

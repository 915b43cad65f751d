"""The analytic profile on CPU cores: a network by its arithmetic and the measured speed of a core.

    latency = OVERHEAD + processes * GMAC / (speed of a core * EFFICIENCY * speedup(cores))
    power   = cores / all cores * (busy power - idle power)

A stand-in until the machine is profiled; its figures are assumed, and right within a factor of two
for convolutional networks in ONNX Runtime.
"""

from typing import Final

from services.kit.profiles.core.profile import BatchCost, SliceShape

EFFICIENCY: Final = 0.5
"""Speed of a network's layers over that of a large matrix product."""

PARALLEL: Final = 0.95
"""Parallel share of a batch's time (Amdahl)."""

OVERHEAD_S: Final = 2e-4
"""Time of a batch without arithmetic, s."""


def speedup(cores: int) -> float:
    """Return the speedup of several cores over one."""
    return 1.0 / ((1.0 - PARALLEL) + PARALLEL / cores)


def power_w(shape: SliceShape) -> float:
    """Return the active power of a slice with all its cores busy, W."""
    return (shape.max_power_w - shape.context_power_w) * shape.sm_count / shape.gpu_sm_count


def batch(shape: SliceShape, gmacs: float, processes: int) -> BatchCost:
    """Return the cost of one batch while every process of the slice is busy.

    Args:
        shape: A slice of CPU cores.
        gmacs: Multiply-accumulates of the batch, 1e9.
        processes: Processes that share the cores.
    """
    rate = shape.core_gmacs_per_s * EFFICIENCY * speedup(shape.sm_count)
    latency_s = OVERHEAD_S + processes * gmacs / rate
    return BatchCost(latency_s, power_w(shape) * latency_s / processes)

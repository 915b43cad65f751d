"""Power limit of a board over its slices.

A board at its limit lowers its one clock for all of its slices, whichever of them draws the power.
Profiles measure a slice while its neighbours are idle, so that a slice may seem to draw more than
all of them can together. A plan must hold while all are busy: a slice then has the part of the
board's power that it has of its SMs, and the clock at which it keeps to it. So every layout keeps
the limit, wherever placement puts its segments.
"""

from collections.abc import Callable
from functools import lru_cache

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.hardware.clock_curve import RATIOS
from services.kit.mig import Geometry, maximal_layouts
from services.kit.profiles.core.profile import BatchCost
from services.planner.core.model import GpuType

_ROUNDING = 1e-6
"""Share of a slice's part by which figures that were computed from it may be above it."""


def most_active_w(gpu: GpuType, slice_kind: SliceProfile, gpus: int) -> float:
    """Return the power above that with a context that a busy slice has for itself, W."""
    if gpu.core_gmacs_per_s:
        return float("inf")  # a processor holds its own limit, and reports what is left
    part = slice_kind.sm_count / _most_sms(gpu.geometry)
    return gpus * part * (1 + _ROUNDING) * (gpu.max_power_w - gpu.context_power_w)


@lru_cache(maxsize=64)
def _most_sms(geometry: Geometry) -> int:
    return max(
        sum(geometry.kind(placement.profile).sm_count for placement in layout)
        for layout in maximal_layouts(geometry)
    )


def held_ratio(
    cost_at: Callable[[float], BatchCost | None],
    processes: int,
    most_w: float,
) -> float:
    """Return the highest clock ratio at which a busy segment keeps its part of the limit.

    If none does, it is the lowest that has a cost.

    Args:
        cost_at: Cost of a full batch with every process busy at a clock ratio.
        processes: Processes of the segment.
        most_w: Its part of the limit (`most_active_w`), W.
    """
    held = 1.0
    for ratio in reversed(RATIOS):
        cost = cost_at(ratio)
        if cost is None:
            break
        held = ratio
        if processes * cost.power_w <= most_w:
            break
    return held

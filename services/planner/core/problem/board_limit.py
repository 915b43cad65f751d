"""Power limit of a board over its slices.

A board at its limit lowers its one clock for all of its slices, whichever of them draws the power.
Profiles measure a slice while its neighbours are idle, so that a slice may seem to draw more than
all of them can together. A plan must hold while all are busy: a slice then has the part of the
board's power that it has of its SMs, and the clock at which it keeps to it. So every layout keeps
the limit, wherever placement puts its segments.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.kit.hardware.clock_curve import RATIOS
from services.kit.mig import Geometry, maximal_layouts
from services.kit.profiles.core.profile import BatchCost
from services.planner.core.model import GpuType

_ROUNDING = 1e-9


def most_active_w(gpu: GpuType, slice_kind: SliceProfile, gpus: int) -> float:
    """Return the power above that with a context that a busy slice has for itself, W."""
    if gpu.core_gmacs_per_s:
        return float("inf")  # a processor holds its own limit, and reports what is left
    part = slice_kind.sm_count / _most_sms(gpu.geometry)
    return gpus * part * (gpu.max_power_w - gpu.context_power_w)


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
    clock_ratio: float,
) -> float:
    """Return the highest clock ratio at which a busy segment keeps its part of the limit.

    If none does, it is the lowest that has a cost.

    Args:
        cost_at: Cost of a full batch with every process busy at a clock ratio.
        processes: Processes of the segment.
        most_w: Its part of the limit (`most_active_w`), W.
        clock_ratio: Highest ratio that is allowed.
    """
    lower: Iterable[float] = (ratio for ratio in reversed(RATIOS) if ratio < clock_ratio)
    held = clock_ratio
    for ratio in chain((clock_ratio,), lower):
        cost = cost_at(ratio)
        if cost is None:
            break
        held = ratio
        if processes * cost.power_w <= most_w * (1 + _ROUNDING):
            break
    return held

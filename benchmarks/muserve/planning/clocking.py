"""Least clocks: as low as objectives allow, and no lower than saves energy."""

from collections.abc import Sequence
from typing import Final

from benchmarks.muserve.planning.model import Demand, Served
from services.kit.hardware import gpu_types
from services.kit.hardware.clock_curve import RATIOS

V100: Final = gpu_types.load("v100").clock_curve
"""The clock curve of mu-Serve's GPU."""

WAITING: Final = 0.5
"""Share of an objective that is left for waiting: a request by itself may take the rest."""


def demands(
    model: Served,
    instances: int = 1,
    *,
    waiting: float = WAITING,
    ratios: Sequence[float] = RATIOS,
) -> tuple[Demand, ...]:
    """Return what each partition of a model requires of its device.

    Each partition may take as much longer as the whole model may: its share of the objective.

    Args:
        model: The model.
        instances: Among which its requests are divided.
        waiting: Share of the objective that is left for waiting, 0..1.
        ratios: Clocks to choose from, over the highest, ascending; the last is 1.
    """
    allowed = max((1.0 - waiting) * model.slo_s / model.latency_s, 1.0)
    return tuple(
        Demand(
            partition=each,
            clock_ratio=_least(each.sensitivity, allowed, ratios),
            load=model.load(each, instances),
        )
        for each in model.partitions
    )


def _least(sensitivity: float, allowed: float, ratios: Sequence[float]) -> float:
    in_time = next(ratio for ratio in ratios if V100.stretch(sensitivity, ratio) <= allowed)
    return max(in_time, V100.thriftiest(sensitivity, ratios))

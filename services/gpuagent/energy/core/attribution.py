"""Attribution of a window's metered energy, whose parts sum to the whole. Pure.

Source: Kepler, `mig-power-attribution.md`: P_i = (P_total - P_idle) * a_i / sum(a), with a_i the
activity of part i; idle power is kept apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from services.gpuagent.energy.core.progress import Work
from services.kit.errors import InvalidArgument

IdleShare = Literal["none", "by_slice", "by_busy"]
"""Sharing of idle energy beside active energy: not at all, by SMs held, or by activity."""

GAIN: Final = 0.25
"""Part of the energy missing from receipts that the next window adds."""

MOST_STEERED: Final = 0.2
"""Most that a receipt is steered off the measured power."""


@dataclass(frozen=True, slots=True)
class EnergyWindow:
    """A stretch of time on one GPU.

    Attributes:
        total_j: Metered energy, J, >= 0.
        idle_j: Idle power times the stretch, J, >= 0.
        activity: By segment, >= 0, in any one unit: busy time x SMs, or modelled joules.
        held: Part of the GPU's SMs that each segment's slice has, >= 0.
        work: What each segment did.
        power_w: Power at its end, W.
        method: How the energy was metered.
        idle_share: How idle energy is shared.
    """

    total_j: float
    idle_j: float
    activity: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, Work] = field(default_factory=dict)
    power_w: float = 0.0
    method: str = "model"
    idle_share: IdleShare = "none"

    def __post_init__(self) -> None:
        if min(self.total_j, self.idle_j, *self.activity.values(), *self.held.values()) < 0:
            raise InvalidArgument(f"energy and activity must be >= 0, got {self}")


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a window's energy went; idle_j + unattributed_j + sum(active_j) = its total, J."""

    idle_j: float
    unattributed_j: float
    active_j: Mapping[str, float]


def attribute(window: EnergyWindow) -> Parts:
    """Split a window's energy.

    Idle energy comes first, up to all there is; the rest goes to the segments by activity; where
    no segment was active it stays unattributed.
    """
    idle_j = min(window.idle_j, window.total_j)
    rest_j = window.total_j - idle_j
    shares = _normalised(window.activity)
    if not shares:
        return Parts(idle_j, rest_j, {})
    return Parts(idle_j, 0.0, {name: rest_j * share for name, share in shares.items()})


def share_idle(window: EnergyWindow, idle_j: float) -> Mapping[str, float]:
    """Return each segment's share of idle energy, J: a figure beside the parts, not one of them.

    "by_slice": by the SMs that a segment's slice holds, and what no segment holds is shared with
    none; "by_busy": all of it by activity, none where no segment was active.

    Returns:
        Shares whose sum is at most `idle_j`.
    """
    if window.idle_share == "by_slice":
        scale = idle_j / max(1.0, sum(window.held.values()))
        return {name: scale * held for name, held in window.held.items()}
    if window.idle_share == "by_busy":
        return {name: idle_j * share for name, share in _normalised(window.activity).items()}
    return {}


def steered_w(power_w: float, owed_j: float, drawn_j: float) -> float:
    """Return the power to count a worker's next batches at, so that receipts sum to what was drawn.

    Args:
        power_w: What it drew in the last window, W.
        owed_j: What its segment drew and no receipt stated; < 0: receipts stated too much, J.
        drawn_j: What its segment drew in the last window, J, > 0.
    """
    correction = GAIN * owed_j / drawn_j
    return power_w * (1 + min(max(correction, -MOST_STEERED), MOST_STEERED))


def error_ratio(parts_j: float, total_j: float) -> float:
    """Return |parts - total| / total; 0 of nothing."""
    return abs(parts_j - total_j) / total_j if total_j > 0 else abs(parts_j)


def _normalised(weights: Mapping[str, float]) -> Mapping[str, float]:
    """Return the weights over their sum; nothing where that is 0."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()} if total > 0 else {}

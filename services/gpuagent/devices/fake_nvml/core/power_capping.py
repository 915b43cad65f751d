"""The board's power capping: a power limit lowers the SM clock while the load would exceed it.

The board measures what it draws and scales it to other clocks by the published curve
(`services.kit.profiles.core.clock_curve`). It acts on means over a short window, as real boards
do, so a peak shorter than that may exceed the limit.
"""

from __future__ import annotations

from typing import Final

from services.kit.profiles.core.clock_curve import power_ratio

WINDOW_S: Final = 0.25


class LoadWindow:
    """Means of the active power, one window after another."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def mean_power_w(self, at_s: float, active_j: float) -> float | None:
        """Return the mean active power since the window began, W; None until it is over.

        Args:
            at_s: Now, s.
            active_j: Active energy up to now, J.
        """
        began_s, began_j = self._began or (at_s, active_j)
        elapsed_s = at_s - began_s
        if self._began is None or not 0 <= elapsed_s < WINDOW_S:
            self._began = (at_s, active_j)
        if elapsed_s < WINDOW_S:
            return None
        return max(active_j - began_j, 0.0) / elapsed_s


def allowed_mhz(
    clocks_mhz: tuple[int, ...], clock_mhz: int, active_w: float, budget_w: float
) -> int:
    """Return the highest clock at which the present load stays within a budget of power.

    Args:
        clocks_mhz: Supported SM clocks, MHz, highest first.
        clock_mhz: The clock at which the load was seen, MHz.
        active_w: Active power of the load at that clock, W, >= 0.
        budget_w: Active power that is allowed, W.

    Returns:
        A supported clock; the lowest one where not even that keeps within the budget.
    """
    full_w = active_w / power_ratio(clock_mhz / clocks_mhz[0])
    for candidate_mhz in clocks_mhz:
        if full_w * power_ratio(candidate_mhz / clocks_mhz[0]) <= budget_w:
            return candidate_mhz
    return clocks_mhz[-1]

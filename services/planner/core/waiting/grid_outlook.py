"""The grid's coming hours, as last forecast; they hold while no newer forecast comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.planner.core.forecast.forecast_periods import Step, mean_gco2e_per_kwh

OUTLOOK_S = 172_800.0
"""Length of the forecasts that waiting work is released by, grid time, s."""

_STEP_S = 3600.0
"""Length of a forecast's last step, s."""


@dataclass(slots=True)
class GridOutlook:
    """Forecasts by zone, and grid time.

    Attributes:
        speedup: Grid seconds per second.
        length_s: Length of the forecasts that waiting work needs, grid time, s; 0: none.
        steps: The last forecast by zone.
    """

    speedup: float = 1.0
    length_s: float = 0.0
    steps: dict[str, Sequence[Step]] = field(default_factory=dict)
    _grid_s: float | None = None
    _heard_s: float = 0.0

    def hear(self, grid_s: float, now_s: float) -> None:
        """Record grid time, s since the epoch, and the monotonic time at which it was heard, s."""
        self._grid_s, self._heard_s = grid_s, now_s

    def now_s(self, now_s: float, wall_s: float) -> float:
        """Return grid time, s since the epoch.

        Args:
            now_s: Monotonic time, s.
            wall_s: Time of day, s since the epoch: grid time until one was heard.
        """
        if self._grid_s is None:
            return wall_s
        return self._grid_s + self.speedup * (now_s - self._heard_s)

    def mean(self, weights: Mapping[str, float], start_s: float, end_s: float) -> float | None:
        """Return the expected mean of some zones between two instants; None: not known of all.

        Args:
            weights: Weight by zone, PUE included, for a sum of kilowatt-hours' shares of 1.
            start_s: Start, grid time, s since the epoch.
            end_s: End.
        """
        if not weights or any(not self._knows(zone, end_s) for zone in weights):
            return None
        return sum(
            weight * mean_gco2e_per_kwh(self.steps[zone], start_s, end_s)
            for zone, weight in weights.items()
        )

    def _knows(self, zone: str, at_s: float) -> bool:
        steps = self.steps.get(zone)
        return steps is not None and at_s <= steps[-1].since_s + _STEP_S

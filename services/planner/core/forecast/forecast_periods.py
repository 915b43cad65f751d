"""From each zone's forecast to the periods of a problem."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from services.kit.config import Horizon
from services.planner.core.model import Period


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of one zone's forecast.

    Attributes:
        since_s: Its start, grid time, s since the epoch.
        length_s: How long it lasts, grid time, s.
        intensity_gco2e_per_kwh: Expected carbon intensity.
    """

    since_s: float
    length_s: float
    intensity_gco2e_per_kwh: float


def periods(forecasts: Mapping[str, Sequence[Step]], horizon: Horizon) -> tuple[Period, ...]:
    """Return the periods of a horizon, the present one first.

    They begin when the newest of the steps in force did. The first has the present intensities,
    each later one the means over it. Zones may have forecasts of different age and step; beyond
    the end of a forecast its last value stands.

    Args:
        forecasts: By zone; each without holes and with the step in force first. None: no periods.
        horizon: How far to look, grid time.
    """
    if not forecasts or not horizon.length_s:
        return ()
    curves = {zone: _Curve(steps) for zone, steps in forecasts.items()}
    start_s = max(steps[0].since_s for steps in forecasts.values())
    end_s = start_s + horizon.length_s
    found: list[Period] = []
    at_s = start_s
    while at_s < end_s:
        length_s = min(horizon.step_s, end_s - at_s)
        until_s = at_s + (length_s if found else 0.0)
        means = {zone: curve.mean(at_s, until_s) for zone, curve in curves.items()}
        found.append(Period(length_s, means))
        at_s += length_s
    return tuple(found)


class _Curve:
    """One zone's forecast as a step function; its ends stand for what is beyond them."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._starts_s = [step.since_s for step in steps]
        areas = (step.length_s * step.intensity_gco2e_per_kwh for step in steps)
        self._areas = list(accumulate(areas, initial=0.0))

    def mean(self, start_s: float, end_s: float) -> float:
        """Return the mean intensity over a stretch of time, or where it has no length, then."""
        if end_s <= start_s:
            return self._steps[self._index(start_s)].intensity_gco2e_per_kwh
        return (self._area(end_s) - self._area(start_s)) / (end_s - start_s)

    def _area(self, until_s: float) -> float:
        index = self._index(until_s)
        step = self._steps[index]
        return self._areas[index] + (until_s - step.since_s) * step.intensity_gco2e_per_kwh

    def _index(self, at_s: float) -> int:
        return max(0, bisect_right(self._starts_s, at_s) - 1)

"""Conversion of the zones' forecasts to the periods of a problem."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.kit.config import Horizon
from services.planner.core.model import Period


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one zone's forecast, until the next one begins.

    Attributes:
        since_s: Start, grid time, s since the epoch.
        intensity_gco2e_per_kwh: Expected carbon intensity.
    """

    since_s: float
    intensity_gco2e_per_kwh: float


def periods(forecasts: Mapping[str, Sequence[Step]], horizon: Horizon) -> tuple[Period, ...]:
    """Return the periods of a horizon, the current one first.

    They begin with the newest of the steps in force. The first has the current intensities, each
    later one the mean intensities over it. Zones may have forecasts of different age and step; the
    last value of a forecast holds beyond its end.

    Args:
        forecasts: Forecast by zone, without gaps and with the step in force first. None: no
            periods.
        horizon: Length and step, grid time.
    """
    if not forecasts or not horizon.length_s:
        return ()
    start_s = max(steps[0].since_s for steps in forecasts.values())
    end_s = start_s + horizon.length_s
    found: list[Period] = []
    at_s = start_s
    while at_s < end_s:
        length_s = min(horizon.step_s, end_s - at_s)
        until_s = at_s + (length_s if found else 0.0)
        means = {
            zone: mean_gco2e_per_kwh(steps, at_s, until_s) for zone, steps in forecasts.items()
        }
        found.append(Period(length_s, means))
        at_s += length_s
    return tuple(found)


def mean_gco2e_per_kwh(steps: Sequence[Step], start_s: float, end_s: float) -> float:
    """Return the mean intensity over a stretch of time; at its start if it has no length.

    The first and the last step also hold before and after the forecast.
    """
    bounds_s = [-math.inf, *(step.since_s for step in steps[1:]), math.inf]
    if end_s <= start_s:
        return steps[bisect_right(bounds_s, start_s) - 1].intensity_gco2e_per_kwh
    parts_s = (
        max(0.0, min(end_s, until_s) - max(start_s, since_s))
        for since_s, until_s in pairwise(bounds_s)
    )
    area = sum(
        part_s * step.intensity_gco2e_per_kwh for part_s, step in zip(parts_s, steps, strict=True)
    )
    return area / (end_s - start_s)

"""From each zone's forecast to the periods of a problem."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from services.kit.config import Horizon
from services.planner.core.model import Period


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of one zone's forecast, until the next one begins.

    Attributes:
        since_s: Its start, grid time, s since the epoch.
        intensity_gco2e_per_kwh: Expected carbon intensity.
    """

    since_s: float
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
    start_s = max(steps[0].since_s for steps in forecasts.values())
    end_s = start_s + horizon.length_s
    found: list[Period] = []
    at_s = start_s
    while at_s < end_s:
        length_s = min(horizon.step_s, end_s - at_s)
        until_s = at_s + (length_s if found else 0.0)
        means = {zone: _mean(steps, at_s, until_s) for zone, steps in forecasts.items()}
        found.append(Period(length_s, means))
        at_s += length_s
    return tuple(found)


def _mean(steps: Sequence[Step], start_s: float, end_s: float) -> float:
    """Return the mean intensity over a stretch of time, or where it has no length, then.

    The ends of the steps stand for what is beyond them.
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

"""Carbon intensities as last heard: their age, their range, and what to assume of others."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from services.kit.config import Zone
from services.kit.config.carbon_sources import StaticSource, SyntheticSource

Range = tuple[float, float]

WORLD_MEAN_GCO2E_PER_KWH: Final = 473.0
"""Mean intensity of the world's electricity in 2024 (Ember, Global Electricity Review 2025)."""

MEDIAN_PERCENTILE: Final = 50.0


@dataclass(frozen=True, slots=True)
class LastIntensity:
    """A zone's last intensity, as it outlives the planner that heard it.

    Attributes:
        intensity_gco2e_per_kwh: The intensity.
        since: When it was new, UTC; under replay its age in grid time, before that planner's clock.
    """

    intensity_gco2e_per_kwh: float
    since: datetime


def assumed_gco2e_per_kwh(zone: Zone) -> float:
    """Return the intensity to plan with in a zone whose intensity was never known.

    Its static value or synthetic mean, if the deployment has one; else the world's mean.
    """
    for source in zone.sources:
        if isinstance(source, StaticSource):
            return source.intensity_gco2e_per_kwh
        if isinstance(source, SyntheticSource):
            return source.mean_gco2e_per_kwh
    return MEDIAN_PERCENTILE if zone.signal == "percentile" else WORLD_MEAN_GCO2E_PER_KWH


@dataclass(frozen=True, slots=True)
class _Heard:
    """An intensity, gCO2e/kWh, and its start, s."""

    since_s: float
    intensity_gco2e_per_kwh: float


class GridSignal:
    """Records the intensities of the last `dwell_s` by zone, and the age of the last one.

    Args:
        dwell_s: Time that a change must last before it counts, grid time, s.
        speedup: Grid seconds per second.

    Attributes:
        count: Number of intensities heard so far.
        speedup: Grid seconds per second.
    """

    def __init__(self, dwell_s: float = 0.0, speedup: float = 1.0) -> None:
        self._dwell_s = dwell_s / speedup
        self.speedup = speedup
        self.count = 0
        self._heard: dict[str, deque[_Heard]] = {}
        self._born_s: dict[str, float] = {}  # time of each zone's newest information

    def hear(
        self,
        intensity_gco2e_per_kwh: Mapping[str, float],
        staleness_s: Mapping[str, float],
        now_s: float,
    ) -> None:
        """Record the intensities in force from now on.

        Args:
            intensity_gco2e_per_kwh: Intensity by zone.
            staleness_s: Staleness by zone, grid time, s; missing: 0.
            now_s: Now, s.
        """
        self.count += len(intensity_gco2e_per_kwh)
        for zone, intensity in intensity_gco2e_per_kwh.items():
            heard = self._heard.setdefault(zone, deque())
            heard.append(_Heard(now_s, intensity))
            self._forget(heard, now_s)
            self._born_s[zone] = now_s - staleness_s.get(zone, 0.0) / self.speedup

    def recall(self, zone: str, born_s: float) -> None:
        """Record the age of an intensity from before a restart: any other is a change at once.

        Args:
            zone: The zone.
            born_s: When it was new, s.
        """
        self._born_s[zone] = born_s

    def ages_s(self, now_s: float) -> dict[str, float]:
        """Return the age of each zone's newest information, s; it grows without reports."""
        return {zone: now_s - at_s for zone, at_s in self._born_s.items()}

    def staleness_s(self, now_s: float) -> dict[str, float]:
        """Return the staleness of each zone, grid time, s."""
        return {zone: age_s * self.speedup for zone, age_s in self.ages_s(now_s).items()}

    def ranges(self, now_s: float) -> dict[str, Range]:
        """Return the lowest and highest intensity within the last `dwell_s`, by zone."""
        found = {}
        for zone, heard in self._heard.items():
            self._forget(heard, now_s)
            values = [each.intensity_gco2e_per_kwh for each in heard]
            found[zone] = (min(values), max(values))
        return found

    def settles_s(self, now_s: float) -> float:
        """Return the time until the ranges may narrow, s; infinite: they cannot narrow any more."""
        ends = [
            heard[1].since_s + self._dwell_s - now_s
            for heard in self._heard.values()
            if len(heard) > 1
        ]
        return max(min(ends, default=float("inf")), 0.0)

    def _forget(self, heard: deque[_Heard], now_s: float) -> None:
        """Drop intensities that ended before the dwell began; the one in force then stays."""
        while len(heard) > 1 and heard[1].since_s <= now_s - self._dwell_s:
            heard.popleft()

"""Recent carbon intensities: their age, and their range."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

Range = tuple[float, float]


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
    """

    def __init__(self, dwell_s: float = 0.0, speedup: float = 1.0) -> None:
        self._dwell_s = dwell_s / speedup
        self._speedup = speedup
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
        for zone, intensity in intensity_gco2e_per_kwh.items():
            heard = self._heard.setdefault(zone, deque())
            heard.append(_Heard(now_s, intensity))
            self._forget(heard, now_s)
            self._born_s[zone] = now_s - staleness_s.get(zone, 0.0) / self._speedup

    def staleness_s(self, now_s: float) -> dict[str, float]:
        """Return the staleness of each zone, grid time, s; it grows without reports."""
        return {zone: (now_s - at_s) * self._speedup for zone, at_s in self._born_s.items()}

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

"""What was lately heard of the grid: how old it is, and how steady."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Heard:
    """An intensity, gCO2e/kWh, from when on, s."""

    since_s: float
    intensity_gco2e_per_kwh: float


class GridSignal:
    """Remembers, by zone, the intensities of the last `dwell_s`, and the age of the last one.

    Args:
        dwell_s: How long a change must last before it counts, grid time, s.
        speedup: Grid seconds per second.
    """

    def __init__(self, dwell_s: float = 0.0, speedup: float = 1.0) -> None:
        self._dwell_s = dwell_s / speedup
        self._speedup = speedup
        self._heard: dict[str, deque[_Heard]] = {}
        self._born_s: dict[str, float] = {}  # when each zone's knowledge would be of age 0

    def hear(
        self,
        intensity_gco2e_per_kwh: Mapping[str, float],
        staleness_s: Mapping[str, float],
        now_s: float,
    ) -> None:
        """Take in what holds from now on.

        Args:
            intensity_gco2e_per_kwh: By zone.
            staleness_s: Age of what is known, grid time, by zone; left out: as new as can be.
            now_s: Now.
        """
        for zone, intensity in intensity_gco2e_per_kwh.items():
            heard = self._heard.setdefault(zone, deque())
            heard.append(_Heard(now_s, intensity))
            self._forget(heard, now_s)
            self._born_s[zone] = now_s - staleness_s.get(zone, 0.0) / self._speedup

    def staleness_s(self, now_s: float) -> dict[str, float]:
        """Return how old the knowledge of each zone is, grid time, s; it ages with silence."""
        return {zone: (now_s - at_s) * self._speedup for zone, at_s in self._born_s.items()}

    def ranges(self, now_s: float) -> dict[str, Range]:
        """Return lowest and highest intensity that held within the last `dwell_s`, by zone."""
        found = {}
        for zone, heard in self._heard.items():
            self._forget(heard, now_s)
            values = [each.intensity_gco2e_per_kwh for each in heard]
            found[zone] = (min(values), max(values))
        return found

    def settles_s(self, now_s: float) -> float:
        """Return after how long the ranges may be narrower, s; infinite: they are not any more."""
        ends = [
            heard[1].since_s + self._dwell_s - now_s
            for heard in self._heard.values()
            if len(heard) > 1
        ]
        return max(min(ends, default=float("inf")), 0.0)

    def _forget(self, heard: deque[_Heard], now_s: float) -> None:
        """Drop what was over before the dwell began; the one in force then stays."""
        while len(heard) > 1 and heard[1].since_s <= now_s - self._dwell_s:
            heard.popleft()

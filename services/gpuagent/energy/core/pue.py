"""Measured PUE: energy at the wall over energy of the devices.

    PUE = (W(t1) - W(t0)) / (D(t1) - D(t0))

with W the energy that a meter at the wall saw and D the energy of all the node's devices, over the
last `window_s`. The numerator is more than a data centre's PUE would have there (fans, host, power
supply, which it counts as work), and is what a joule of a device costs at this wall.

A meter reports power now and then; each value is taken to hold until the next.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

LOWEST: Final = 1.0
"""Below, the wall would give less than the devices take: the meter is another node's."""
HIGHEST: Final = 3.0
"""Above, the node idles: what its host draws is not for its devices' work."""

_POINTS: Final = 100
_LEAST_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Point:
    """Both energies at one moment. Attributes: at_s, wall_j, device_j."""

    at_s: float
    wall_j: float
    device_j: float


@dataclass(frozen=True, slots=True)
class _Wall:
    """Last report of the meter. Attributes: at_s, power_w, energy_j (seen until then)."""

    at_s: float
    power_w: float
    energy_j: float

    def energy_at(self, at_s: float) -> float:
        return self.energy_j + self.power_w * (at_s - self.at_s)


class PueMeter:
    """Compares a wall's meter with the devices'. Times are monotonic seconds.

    Args:
        window_s: How long they are compared, s; a tenth of it is the least that says anything.
        stale_after_s: A meter silent for longer measures no more, s.
    """

    def __init__(self, window_s: float, stale_after_s: float) -> None:
        self._window_s = window_s
        self._stale_after_s = stale_after_s
        self._wall: _Wall | None = None
        self._points: deque[_Point] = deque()

    def wall_power_w(self, now_s: float) -> float | None:
        """Return the meter's last power, W; None: too long ago."""
        wall = self._heard(now_s)
        return None if wall is None else wall.power_w

    def wall(self, power_w: float, now_s: float) -> None:
        """Add a power reading of the meter, W, >= 0."""
        before = self._heard(now_s)
        if before is None:
            self._points.clear()  # the energy drawn meanwhile is unknown
        self._wall = _Wall(now_s, power_w, before.energy_at(now_s) if before else 0.0)

    def devices(self, energy_j: float, now_s: float) -> None:
        """Take in the devices' energy since some fixed moment, J."""
        wall = self._heard(now_s)
        if wall is None:
            self._points.clear()
            return
        if self._points and energy_j < self._points[-1].device_j:
            self._points.clear()  # a device's account began again
        point = _Point(now_s, wall.energy_at(now_s), energy_j)
        if len(self._points) > 1 and now_s - self._points[-2].at_s < self._window_s / _POINTS:
            self._points.pop()
        self._points.append(point)
        while len(self._points) > 1 and self._points[1].at_s <= now_s - self._window_s:
            self._points.popleft()

    def pue(self, now_s: float) -> float | None:
        """Return the PUE, within LOWEST..HIGHEST; None: it is not known."""
        if self._heard(now_s) is None or len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        device_j = last.device_j - first.device_j
        if last.at_s - first.at_s < self._window_s * _LEAST_SHARE or device_j <= 0:
            return None
        return min(max((last.wall_j - first.wall_j) / device_j, LOWEST), HIGHEST)

    def _heard(self, now_s: float) -> _Wall | None:
        """Return the meter's last report; None: there is none, or it was too long ago."""
        wall = self._wall
        return wall if wall is not None and now_s - wall.at_s <= self._stale_after_s else None


def reported(before: float | None, measured: float | None, step: float = 0.02) -> float | None:
    """Return the PUE to report: the last reported until the measured one is `step` away from it.

    Every change goes to the planner and on into routing tables.
    """
    if measured is None or before is None or abs(measured - before) >= step:
        return None if measured is None else round(measured, 2)
    return before

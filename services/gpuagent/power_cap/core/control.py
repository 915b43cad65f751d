"""Control of a node's power below a cap: clocks first, then the boards' power limits.

    too high: the clock goes down at once, in proportion to the excess; at its floor, limits do
    again:    by more each time that the power stays too high: while GPUs are not busy all the time,
              a lower clock keeps them busy for longer, and hardly lowers power at first
    calm:     limits go up first, then the clock, by no more than keeps the cap if power grows with
              the third power of the clock, at the highest power of the last seconds

Power within the band from CALM to the cap changes nothing, so that steady work comes to rest. Load
that varies comes to rest where its peaks keep the cap: each time that more power led back above it,
the peaks of twice as long a time count.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

TARGET: Final = 0.97
"""Share of the cap that a change aims at."""

CALM: Final = 0.92
"""Share of the cap below which a change may be taken back."""

SETTLE_S: Final = 1.0
"""Time in which a change shows in the meter, s: NVML averages power over a second."""

CALM_S: Final = 5.0
"""Time below CALM after which a change is taken back, s; twice as long each time that this led back
above the cap within RELAPSE_S."""

MOST_CALM_S: Final = 160.0

RELAPSE_S: Final = 60.0

_DEEPEST: Final = 0.1
"""Least factor of one step: the meter may lag behind."""

_RISE: Final = 1.3
"""Most of one step up: work that waited may come at once."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """Limits on a node's devices.

    Attributes:
        clock: Highest SM clock over a GPU's highest, 0..1; 1: none.
        limit_w: Power limit of all boards together, W; infinite: none beside their own.
    """

    clock: float = 1.0
    limit_w: float = math.inf

    @property
    def none(self) -> bool:
        """True where nothing is limited."""
        return self.clock >= 1.0 and math.isinf(self.limit_w)


NONE: Final = Throttle()


class PowerControl:
    """Keeps a node's metered power below a cap. Reads no meter, and touches nothing.

    Args:
        floor: Lowest clock over the highest; 1: clocks cannot be changed.
        limits_w: Least and highest power limit of all boards together, W; None: they have none that
            may be changed.

    Attributes:
        limits_w: As given; set it once a board says more.
        throttle: The limits in force.
        exhausted: The power is above the cap, and nothing more can be lowered.
    """

    def __init__(self, floor: float, limits_w: tuple[float, float] | None) -> None:
        self.throttle = NONE
        self.exhausted = False
        self._floor, self.limits_w = floor, limits_w
        self._changed_s = self._lowered_s = self._raised_s = -math.inf
        self._again = 0  # times that it was lowered one after the other
        self._calm_s = CALM_S
        self._peaks = deque[tuple[float, float]]()  # when, W above idle over the clock's cube

    def look(
        self, at_s: float, power_w: float, idle_w: float, cap_w: float, clock: float = 1.0
    ) -> Throttle:
        """Return the limits to set, from a sample.

        Args:
            at_s: Time of the sample, s.
            power_w: Metered power of the node's devices, W.
            idle_w: Power of these without work, W.
            cap_w: Most that they may draw, W; infinite: any.
            clock: Highest clock in force over the highest: that of a plan, or of the clock loop.
        """
        if at_s - self._changed_s < SETTLE_S:
            return self.throttle
        self._note(at_s, power_w - idle_w)
        over = power_w > cap_w
        if over:
            self._set(at_s, self._lower(power_w, _share(power_w, idle_w, cap_w), clock))
            self._relapse(at_s)
        else:
            self._again = 0
            if not self.throttle.none and (math.isinf(cap_w) or self._is_calm(at_s, idle_w, cap_w)):
                share = _share(idle_w + self._peak_w(), idle_w, cap_w)
                self._set(at_s, self._raise(power_w, share))
                self._raised_s = at_s
        least = Throttle(self._floor, self.limits_w[0] if self.limits_w else math.inf)
        self.exhausted = over and self.throttle == least
        return self.throttle

    def _note(self, at_s: float, active_w: float) -> None:
        """Keep the power of the last seconds, as it would be at the highest clock at most."""
        self._peaks.append((at_s, max(active_w, 0.0) / self.throttle.clock**3))
        while self._peaks[0][0] < at_s - self._calm_s:
            self._peaks.popleft()

    def _peak_w(self) -> float:
        """Return the highest power above idle of the last seconds, at the present clock, W."""
        return self.throttle.clock**3 * max(active_w for _, active_w in self._peaks)

    def _is_calm(self, at_s: float, idle_w: float, cap_w: float) -> bool:
        below = idle_w + self._peak_w() < CALM * cap_w
        return below and at_s - self._lowered_s >= self._calm_s

    def _relapse(self, at_s: float) -> None:
        """Wait longer for the next rise where one led back above the cap."""
        self._again, self._lowered_s = self._again + 1, at_s
        if at_s - self._raised_s < RELAPSE_S:
            self._calm_s, self._raised_s = min(MOST_CALM_S, 2 * self._calm_s), -math.inf

    def _set(self, at_s: float, throttle: Throttle) -> None:
        if throttle != self.throttle:
            self.throttle, self._changed_s = throttle, at_s

    def _lower(self, power_w: float, share: float, clock: float) -> Throttle:
        """Return lower limits: at the floor of the clock, lower power limits.

        Where that was just done, and was not enough, they go down by more.

        Args:
            power_w: Metered power, W.
            share: Power above idle that is allowed, over what is drawn.
            clock: Highest clock in force.
        """
        factor, now = max(share ** (1 + self._again), _DEEPEST), self.throttle
        lower = max(self._floor, min(now.clock, clock) * factor)
        if lower < now.clock or self.limits_w is None:
            return Throttle(min(lower, now.clock), now.limit_w)
        limit_w = min(now.limit_w, power_w) * factor
        return Throttle(now.clock, max(limit_w, self.limits_w[0]))

    def _raise(self, power_w: float, share: float) -> Throttle:
        """Return higher limits: first the power limits, then the clock; arguments as before.

        Power limits that are well above what is drawn limit nothing, and end at once.
        """
        now, rise = self.throttle, min(_RISE, max(share, 1.0) ** (1 / 3))
        if self.limits_w is not None and now.limit_w < self.limits_w[1]:
            limit_w = now.limit_w * rise
            binds = limit_w < min(self.limits_w[1], 2 * power_w)
            return Throttle(now.clock, limit_w if binds else math.inf)
        return Throttle(min(1.0, now.clock * rise))


def _share(power_w: float, idle_w: float, cap_w: float) -> float:
    """Return the power above idle that is aimed at, over what is drawn."""
    return max(TARGET * cap_w - idle_w, 0.0) / max(power_w - idle_w, 1e-3)

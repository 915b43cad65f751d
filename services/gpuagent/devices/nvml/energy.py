"""Energy of one GPU on one scale: counted where it counts, else its power over time."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class EnergyMeter:
    """Follows the energy counter; while there is none, sums power by the trapezoid rule.

    Both are on one scale: a counter that is refused for a while and comes back goes on from there,
    and what the power said of the time between is counted once. Power samples are as good as they
    are dense: whatever happens between two of them is taken as a straight line.

    Attributes:
        known_at_s: Time of the last reading that the driver did not refuse, s; -inf: none yet.
    """

    known_at_s: float = -math.inf
    _energy_j: float = 0.0
    _counter_j: float | None = None
    _power_w: float | None = None

    def read(
        self, now_s: float, counter_j: float | None, power_w: float | None
    ) -> tuple[float, Literal["counter", "integrated"]] | None:
        """Return the energy and how it is known, J; None: neither is reported.

        Args:
            now_s: Monotonic time, s; never less than the last reading's.
            counter_j: The energy counter, J; None: there is none now.
            power_w: Power now, W; None: it is not reported now.
        """
        if counter_j is None and power_w is None:
            return None
        last_s, last_w = self.known_at_s, self._power_w
        self.known_at_s, self._power_w = now_s, power_w
        if counter_j is not None:
            restarted = self._counter_j is None or counter_j < self._counter_j
            self._energy_j = counter_j if restarted else max(counter_j, self._energy_j)
            self._counter_j = counter_j
            return self._energy_j, "counter"
        if power_w is not None and math.isfinite(last_s):
            mean_w = power_w if last_w is None else (last_w + power_w) / 2
            self._energy_j += (now_s - last_s) * mean_w
        return self._energy_j, "integrated"

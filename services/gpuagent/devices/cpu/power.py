"""Power of a machine that does not report it: idle power, and an amount for every busy core.

Linear in utilisation, as X. Fan et al., "Power Provisioning for a Warehouse-sized Computer"
(ISCA'07) found of servers, within 10 %. The defaults are those of Cloud Carbon Footprint
(methodology, appendix I, from SPECpower results of AWS's processors): a hyperthread draws 0.74 W
idle and 3.5 W busy.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil

IDLE_W: Final = 0.74
"""Per core."""


def busy_s(cores: Sequence[int] | None = None) -> float:
    """Return the time that cores were not idle since the machine started, summed, s.

    Args:
        cores: Their numbers; None: all of the machine's.
    """
    times = psutil.cpu_times(percpu=True)
    found = times if cores is None else [times[core] for core in cores]
    # `user` has the guests' time in it already.
    return sum(t.user + t.nice + t.system + t.irq + t.softirq for t in found)


@dataclass(slots=True)
class PowerModel:
    """Counts energy that it models.

    Attributes:
        cores: The cores that count.
        idle_w: Power of all of them with nothing running, W.
        core_w: Power that a busy core adds, W.
        monotonic: Seconds.
        busy_s: Returns how long cores were busy, s.
    """

    cores: Sequence[int]
    idle_w: float
    core_w: float
    monotonic: Callable[[], float] = time.monotonic
    busy_s: Callable[[Sequence[int]], float] = busy_s
    _most_j: float = field(default=0.0, init=False)

    def energy_j(self) -> float:
        """Return the energy since the machine started, J; it never falls."""
        modelled_j = self.idle_w * self.monotonic() + self.core_w * self.busy_s(self.cores)
        # The kernel's counters may step back by a tick.
        self._most_j = max(self._most_j, modelled_j)
        return self._most_j

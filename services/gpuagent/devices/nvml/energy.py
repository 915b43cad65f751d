"""Energy of GPUs: counted where they count, else their power over time."""

from collections.abc import Callable
from typing import Any

import pynvml


class PowerIntegral:
    """Sums power samples by the trapezoid rule.

    It is as good as the samples are dense: whatever happens between two of them is taken as a
    straight line.
    """

    def __init__(self) -> None:
        self._energy_j = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, now_s: float, power_w: float) -> float:
        """Take a sample; return the energy since the first one, J.

        Args:
            now_s: Monotonic time, s; never less than the last sample's.
            power_w: Power now, W.
        """
        if self._last is not None:
            last_s, last_w = self._last
            self._energy_j += (now_s - last_s) * (last_w + power_w) / 2
        self._last = (now_s, power_w)
        return self._energy_j


_MISSING = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)


def thousandths(read: Callable[[Any], int], handle: Any) -> float | None:
    """Return W of what NVML counts in mW, J of what it counts in mJ; None: not on this GPU."""
    try:
        return read(handle) / 1000
    except _MISSING:
        return None

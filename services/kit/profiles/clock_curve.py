"""What a lower SM clock does to time and power.

Closed forms through the medians of 20 CUDA kernels on a V100 (memory clock fixed), relative to
1380 MHz: 945 MHz takes 1.27 times as long at 0.62 of the power, 705 MHz 1.87 at 0.49, 405 MHz 4.95
at 0.29 (github.com/blackjack2015/NV-DVFS-Benchmark). Both forms stay within 10 % of these points.
Energy, their product, is least near 0.7 of the highest clock: what mu-Serve (ATC'24) exploits.
"""

from __future__ import annotations

import math

LINEAR, BEND = 0.934, 1.62
FIXED, EXPONENT = 0.2, 1.7


def time_ratio(clock_ratio: float) -> float:
    """Return how much longer SM work takes at `clock_ratio` of the highest clock, >= 1."""
    return 1.0 + LINEAR * math.pow(1.0 / clock_ratio - 1.0, BEND)


def power_ratio(clock_ratio: float) -> float:
    """Return the share of active power left at `clock_ratio` of the highest clock, 0..1."""
    return FIXED + (1.0 - FIXED) * math.pow(clock_ratio, EXPONENT)

"""Effect of a lower SM clock on latency and power.

Closed forms through the medians of 20 CUDA kernels on a V100 (memory clock fixed), relative to
1380 MHz: 945 MHz takes 1.27 times as long at 0.62 of the power, 705 MHz 1.87 at 0.49, 405 MHz 4.95
at 0.29 (github.com/blackjack2015/NV-DVFS-Benchmark). Both forms stay within 10 % of these points.
Energy, their product, is least near 0.7 of the highest clock: what mu-Serve (ATC'24) exploits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

RATIOS: Final = tuple(step / 20 for step in range(6, 21))
"""Clocks to choose from, over the highest: mu-Serve's loop steps by 5 %."""

LINEAR, BEND = 0.934, 1.62
FIXED, EXPONENT = 0.2, 1.7


def time_ratio(clock_ratio: float) -> float:
    """Return the relative duration of SM work at `clock_ratio` of the highest clock, >= 1."""
    return 1.0 + LINEAR * math.pow(1.0 / clock_ratio - 1.0, BEND)


def power_ratio(clock_ratio: float) -> float:
    """Return the relative active power at `clock_ratio` of the highest clock, 0..1."""
    return FIXED + (1.0 - FIXED) * math.pow(clock_ratio, EXPONENT)


def stretch(sensitivity: float, clock_ratio: float) -> float:
    """Return the relative duration of work at a share of the highest clock, >= 1.

    Args:
        sensitivity: How its latency follows the clock. 1 is the median of the 20 kernels: in
            mu-Serve's terms (ATC'24, section 3.1) its score is 1.9, for latency grows by 0.93 where
            the clock drops by half. Scores below 1, "insensitive" operators (section 4.4), are
            sensitivities below 0.53.
        clock_ratio: SM clock over the highest, 0 < ratio <= 1.
    """
    return 1.0 + sensitivity * (time_ratio(clock_ratio) - 1.0)


def energy_ratio(sensitivity: float, clock_ratio: float) -> float:
    """Return the active energy of the same work over that at the highest clock."""
    return stretch(sensitivity, clock_ratio) * power_ratio(clock_ratio)


def thriftiest(sensitivity: float, ratios: Iterable[float] = RATIOS) -> float:
    """Return the clock of the least energy for the same work, over the highest.

    mu-Serve drops the clock for as long as objectives hold; below this one that wastes energy. The
    more sensitive work is, the higher it is.
    """
    return min(ratios, key=lambda ratio: (energy_ratio(sensitivity, ratio), ratio))

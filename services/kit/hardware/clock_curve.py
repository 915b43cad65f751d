"""Effect of a lower SM clock on latency and active power, by class of GPU.

    total power = idle power + active power at the highest clock * power_ratio
    latency     = latency at the highest clock * stretch(sensitivity)

Both curves are closed forms through measured medians. Power is *active* power: measured power less
the idle power of the GPU's type. Sources, and how far modelled total power is from measured:

- V100: 20 CUDA kernels at ten clocks, 405 to 1380 MHz (github.com/blackjack2015/NV-DVFS-Benchmark).
  Median error 6 %; every kernel within 25 % from half of the highest clock on, 39 % below. The
  least active energy of a kernel is 1 / 1.33 to 1 / 2.43 of that at the highest clock (median
  1 / 1.47): what mu-Serve (ATC'24) exploits. The large data-centre GPUs after it are taken to be
  like it. Of four inference workloads each (github.com/mertside/ai-inference-energy), the optima of
  three on an A100 are within 7 %, and the fourth drew less than the type idles; on an H100 NVL, at
  90 to 175 W, power fell less: the curve is up to 28 % too low. Others were not measured.
- GTX 1080 Ti: 30 kernels at five clocks, 1600 to 2000 MHz (github.com/HKBU-HPML/GPU-DVFS-Job-
  Schedule), within 9 %. Near the top a consumer GPU's power hardly falls, so that lower clocks
  mostly cost energy. P4 and T4 have consumer GPUs' chips; GPUs of which nothing is known are taken
  to be like it, too.

A table measured at several clocks (`cinquefoil gpuagent profile --clocks`) needs neither. The
figures are in the V100's table and, of consumer GPUs, in the P4's; other tables refer to one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

RATIOS: Final = tuple(step / 20 for step in range(6, 21))
"""Clocks to choose from, over the highest: mu-Serve's loop steps by 5 %."""


@dataclass(frozen=True, slots=True)
class ClockCurve:
    """Latency and power of a class of GPUs over its SM clock.

    Attributes:
        measured_on: The GPU type that was measured.
        linear, bend: Of the latency of SM work: 1 + linear * (1 / ratio - 1) ** bend.
        fixed: Share of active power that does not follow the clock, 0..1.
        exponent: By which the rest does.
        lowest: Lowest clock measured, over the highest: none below it is called thrifty.
    """

    measured_on: str
    linear: float
    bend: float
    fixed: float
    exponent: float
    lowest: float

    def time_ratio(self, clock_ratio: float) -> float:
        """Return the relative duration of SM work at `clock_ratio` of the highest clock, >= 1."""
        return 1.0 + self.linear * math.pow(1.0 / clock_ratio - 1.0, self.bend)

    def power_ratio(self, clock_ratio: float) -> float:
        """Return the relative active power at `clock_ratio` of the highest clock, 0..1."""
        return self.fixed + (1.0 - self.fixed) * math.pow(clock_ratio, self.exponent)

    def stretch(self, sensitivity: float, clock_ratio: float) -> float:
        """Return the relative duration of work at a share of the highest clock, >= 1.

        Args:
            sensitivity: How its latency follows the clock. 1 is the median of the kernels: on a
                V100, in mu-Serve's terms (ATC'24, section 3.1), its score is 1.9, for latency grows
                by 0.93 where the clock drops by half. Scores below 1, "insensitive" operators
                (section 4.4), are sensitivities below 0.53.
            clock_ratio: SM clock over the highest, 0 < ratio <= 1.
        """
        return 1.0 + sensitivity * (self.time_ratio(clock_ratio) - 1.0)

    def energy_ratio(self, sensitivity: float, clock_ratio: float) -> float:
        """Return the active energy of the same work over that at the highest clock."""
        return self.stretch(sensitivity, clock_ratio) * self.power_ratio(clock_ratio)

    def thriftiest(self, sensitivity: float, ratios: Iterable[float] = RATIOS) -> float:
        """Return the clock of the least energy for the same work, over the highest.

        mu-Serve drops the clock for as long as objectives hold; below this one that wastes energy.
        The more sensitive work is, the higher it is. Of those below `lowest` it is the highest.

        Args:
            sensitivity: How latency follows the clock, 0..1.
            ratios: Clocks to choose from, over the highest; at least one.
        """
        return min(
            ratios,
            key=lambda ratio: (
                max(self.lowest - ratio, 0.0),
                self.energy_ratio(sensitivity, ratio),
            ),
        )

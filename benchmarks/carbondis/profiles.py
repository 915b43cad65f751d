"""Latency and power of a batch on P4, T4 and A100.

Table III gives six small batches of one model. Everything else is this, once for all:
- low-end latency is a line through Table III's figures (P4 14.2 + 3.7 b ms, T4 8.6 + 3.5 b ms);
- A100 latency is flat to 6 items, then grows with 1/6 of the P4's slope;
- power saturates (curves fitted to Table III; A100 250 W, P4 90 W, T4 86.5 W at large batches);
- another model takes `scale` times as long on every GPU, at the same power. The scale is what
  makes its SLO tight: at mean batch + 1 std its low-end GPU needs exactly the SLO.
"""

import math
from dataclasses import dataclass

P4_SLOPE_S = 3.7e-3
A100_SLOPE_RATIO = 1 / 6
FLAT_ITEMS = 6


@dataclass(frozen=True, slots=True)
class GpuClass:
    """A GPU of Table II and how Inception-V3 runs on it.

    Attributes:
        name: Name of the GPU.
        rank: 0: low end.
        idle_w: Idle power, W (Table II).
        base_s, slope_s: Latency of a batch: base + slope x (items beyond `flat_items`), s.
        flat_items: Items that cost nothing more.
        first_w, most_w: Power at one item and at very many, W.
        fill_items: Items by which power has come 63 % of the way.
    """

    name: str
    rank: int
    idle_w: float
    base_s: float
    slope_s: float
    flat_items: int
    first_w: float
    most_w: float
    fill_items: float

    def latency_s(self, items: int, scale: float = 1.0) -> float:
        """Return the time of a batch, s."""
        return scale * (self.base_s + self.slope_s * max(items - self.flat_items, 0))

    def power_w(self, items: int) -> float:
        """Return the power while it runs, idle power included, W."""
        way = math.exp(-(items - 1) / self.fill_items)
        return self.most_w - (self.most_w - self.first_w) * way

    def added_j(self, items: int, scale: float = 1.0) -> float:
        """Return the energy of a batch above idle power, J."""
        return self.latency_s(items, scale) * (self.power_w(items) - self.idle_w)


P4 = GpuClass("P4", 0, 25.0, 14.2e-3, P4_SLOPE_S, 0, 81.6, 90.0, 3.0)
T4 = GpuClass("T4", 0, 30.0, 8.6e-3, 3.5e-3, 0, 73.8, 86.5, 3.0)
A100 = GpuClass(
    "A100", 1, 55.0, 13.9e-3, P4_SLOPE_S * A100_SLOPE_RATIO, FLAT_ITEMS, 66.0, 250.0, 20.0
)


def scale_to(slo_s: float, items: int, low: GpuClass, tightness: float = 1.0) -> float:
    """Return the scale at which `low` needs `tightness` x the SLO for so many items."""
    return tightness * slo_s / low.latency_s(items)

"""Stations of a queue, and the grids on which their figures are computed."""

import math
from dataclasses import dataclass

from services.planner.core.model import SegmentKind

NEARLY_FULL = 0.95
"""Utilisation above which no percentile is kept, and no latency is computed."""

NOTHING = 1e-9

GRID = 1.02
"""Ratio of neighbouring loads for which latencies are computed."""

GROUP_GRID = 1.25
"""Ratio of neighbouring dispersions for which latencies are computed."""


@dataclass(frozen=True, slots=True)
class Station:
    """Equal segments that draw from the queue.

    Attributes:
        kind: Segment kind.
        segments: Number of segments.
        load_rps: Load of all of them, req/s.
    """

    kind: SegmentKind
    segments: int
    load_rps: float

    @property
    def processes(self) -> int:
        """Number of processes of all segments."""
        return self.segments * self.kind.processes


def on_grid(load_rps: float) -> float:
    """Round a load up, by at most 2 %, so that neighbouring loads share one computation."""
    return GRID ** math.ceil(math.log(load_rps, GRID) - NOTHING) if load_rps > 0 else 0.0


def rounded_up(dispersion: float) -> float:
    """Round up, so that neighbouring values share one computation."""
    return GROUP_GRID ** math.ceil(math.log(dispersion, GROUP_GRID) - NOTHING)

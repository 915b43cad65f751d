"""The SM clock of one GPU whose servers others run: the clock loop's rules on their histograms."""

from collections.abc import Mapping, Sequence
from typing import Final

from services.gpuagent.clock_loop.core.decide import (
    RULES,
    GovernedSegment,
    Move,
    Observation,
    State,
    bounds,
    decide,
    moved,
)
from services.gpuagent.steering.core.objective_window import ObjectiveWindow
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.server_metrics.figures import Histogram

SETTLED_S: Final = 20.0
"""Time at a clock before it goes down further, s: two pages of requests that began at it."""


class SteeredGpu:
    """Decides on the clock; reads and sets none.

    Args:
        supported_mhz: SM clocks that the GPU supports, MHz.
        floor: Least clock over the highest that the operator allows.
        curve: How the GPU follows its clock: none is lower than that of the least energy.

    Attributes:
        slack: Share of each objective that is left, by (server, objective); those that are known.
    """

    def __init__(self, supported_mhz: Sequence[int], floor: float, curve: ClockCurve) -> None:
        self._supported_mhz, self._floor, self._curve = tuple(supported_mhz), floor, curve
        self._windows: dict[GovernedSegment, ObjectiveWindow] = {}
        self._ceiling_mhz = 0
        self._changed_s = 0.0
        self._state = State(max(supported_mhz))
        self.slack: dict[str, float] = {}

    def look(
        self, at_s: float, ceiling_mhz: int, totals: Mapping[GovernedSegment, Histogram]
    ) -> int:
        """Take in what servers counted, and return the clock; 0: the ceiling's.

        Args:
            at_s: When, s.
            ceiling_mhz: Highest clock that others leave; 0: the GPU's.
            totals: Requests by latency since each server was first seen, by objective; {}: none
                of them can be seen, or others use the GPU: its clock stays theirs.
        """
        sensitivity = max((each.sensitivity for each in totals), default=1.0)
        limits = bounds(self._supported_mhz, ceiling_mhz, self._least(sensitivity))
        if ceiling_mhz != self._ceiling_mhz or totals.keys() != self._windows.keys():
            self._ceiling_mhz, self._changed_s = ceiling_mhz, at_s
            self._windows = {each: ObjectiveWindow(each) for each in totals}
            self._state = State(limits.highest_mhz)
        for each, total in totals.items():
            self._windows[each].add(at_s, total)
        partitions = [each.seen() for each in self._windows.values()]
        self.slack = {
            each.segment.segment_id: each.slack for each in partitions if each.proven_s is not None
        }
        look = Observation(partitions, limits, at_s)
        move = decide(self._state, look)
        before_mhz = self._state.clock_mhz
        if move is not Move.DOWN or at_s - self._changed_s >= SETTLED_S:
            self._state = moved(self._state, move, look, RULES)
        if self._state.clock_mhz != before_mhz:
            self._changed_s = at_s
            for window in self._windows.values():
                window.restart()
        clock_mhz = self._state.clock_mhz
        return 0 if clock_mhz >= limits.highest_mhz else clock_mhz

    def _least(self, sensitivity: float) -> float:
        highest_mhz = max(self._supported_mhz)
        ratios = [clock_mhz / highest_mhz for clock_mhz in self._supported_mhz]
        return max(self._floor, self._curve.thriftiest(sensitivity, ratios))

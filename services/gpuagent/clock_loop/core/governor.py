"""One GPU's clock: from its segments' latencies to the clock that it should have."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import inf
from typing import Final

import numpy as np

from cinquefoil.gpuagent.v1.records import ScaleOut
from services.gpuagent.clock_loop.core.decide import (
    RULES,
    Bounds,
    ClockRules,
    GovernedSegment,
    Move,
    Observation,
    Partition,
    State,
    bounds,
    decide,
    moved,
)
from services.gpuagent.clock_loop.core.latency_window import LatencyWindow
from services.gpuagent.core.batch_costs import CostCurve
from services.gpuagent.shared_memory.latency_counters import Counts
from services.kit.hardware.clock_curve import ClockCurve
from services.kit.hardware.gpu_types import load

SAMPLE_S: Final = 0.5
"""Time between looks, s (mu-Serve, section 3.4)."""

LOOKS_PER_DECISION: Final = 2
"""The clock goes down once a second (ibid.); up at once, for a backlog grows meanwhile."""


class Governor:
    """Decides on one GPU's clock. Reads no clock itself, and touches nothing.

    Args:
        gpu_uuid: The GPU.
        supported_mhz: SM clocks that it supports, MHz.
        floor: Least clock over its highest; nor does the loop go below the one at which the
            segment that wants the highest takes the least energy (see `energy_floor`).
        rules: How the loop behaves.
        curve: How the GPU follows its clock.

    Attributes:
        moves: Moves made so far.
        slack: By model, the least of its segments that had requests lately.
        scale_out: There is more load than the highest clock can serve, as of the last look.
    """

    def __init__(
        self,
        gpu_uuid: str,
        supported_mhz: Sequence[int],
        floor: float,
        rules: ClockRules = RULES,
        curve: ClockCurve | None = None,
    ) -> None:
        self._gpu_uuid = gpu_uuid
        self._supported_mhz = tuple(supported_mhz)
        self._ratios = tuple(clock_mhz / max(supported_mhz) for clock_mhz in supported_mhz)
        self._floor = floor
        self._rules = rules
        self._curve = curve or load("v100").clock_curve
        self._ceiling_mhz = 0
        self._limits = bounds(self._supported_mhz, 0, floor, rules)
        self._state = State(self._limits.highest_mhz)
        self._windows: dict[GovernedSegment, LatencyWindow] = {}
        self._looks = 0
        self.moves: Counter[Move] = Counter()
        self.slack: dict[str, float] = {}
        self.scale_out: ScaleOut | None = None

    @property
    def clock_mhz(self) -> int:
        """The clock that the GPU should have, MHz."""
        return self._state.clock_mhz

    @property
    def at_ceiling(self) -> bool:
        """True at the plan's ceiling: nothing needs to be lowered."""
        return self.clock_mhz >= self._limits.highest_mhz

    def look(self, at_s: float, ceiling_mhz: int, counts: Mapping[GovernedSegment, Counts]) -> None:
        """Take in a sample, every SAMPLE_S, and decide.

        Args:
            at_s: When it was taken, s.
            ceiling_mhz: The plan's clock; 0: the GPU's highest. Another one restarts the loop
                from there.
            counts: Requests by latency since the start, of each segment. Other segments than before
                restart the loop.
        """
        self.scale_out = None
        if ceiling_mhz != self._ceiling_mhz or counts.keys() != self._windows.keys():
            self._start(ceiling_mhz, counts)
        for segment, found in counts.items():
            self._windows[segment].add(at_s, found)
        partitions = [window.seen() for window in self._windows.values()]
        self._note(partitions)
        self._looks += 1
        is_decision = self._looks % LOOKS_PER_DECISION == 0
        look = Observation(
            partitions, self._efficient(partitions) if is_decision else self._limits, at_s
        )
        move = decide(self._state, look, self._rules)
        if is_decision or (move is Move.UP and not self.at_ceiling):
            self._move(move, look)

    def start_again(self) -> None:
        """Restart at the ceiling, as the GPU's clock was not the expected one."""
        self._start(self._ceiling_mhz, {})

    def _start(self, ceiling_mhz: int, segments: Mapping[GovernedSegment, Counts]) -> None:
        self._ceiling_mhz = ceiling_mhz
        self._limits = self._bounds(self._floor)
        self._state = State(self._limits.highest_mhz)
        before = self._windows
        self._windows = {
            segment: LatencyWindow(segment, self._stretch(segment)) for segment in segments
        }
        for segment in before.keys() & segments.keys():
            self._windows[segment].record = before[segment].record
        self._looks = 0

    def _bounds(self, floor: float) -> Bounds:
        return bounds(self._supported_mhz, self._ceiling_mhz, floor, self._rules)

    def _stretch(self, segment: GovernedSegment) -> float:
        return self._curve.stretch(segment.sensitivity, self.clock_mhz / max(self._supported_mhz))

    def _efficient(self, partitions: Sequence[Partition]) -> Bounds:
        """Return the clocks that save energy, and those that the present clock is already below."""
        if not self._rules.energy_floor:
            return self._limits
        least = energy_floor(partitions, self._ratios, self._curve)
        return self._bounds(max(self._floor, least))

    def _move(self, move: Move, look: Observation) -> None:
        before_mhz = self.clock_mhz
        self._state = moved(self._state, move, look, self._rules)
        self.moves[move] += 1
        if self.clock_mhz != before_mhz:
            for segment, window in self._windows.items():
                window.restart(self._stretch(segment))
        wanting = self._state.wanting
        if wanting and wanting % self._rules.patience == 0:
            self.scale_out = self._more()

    def _more(self) -> ScaleOut:
        late = {model: left for model, left in self.slack.items() if left < self._rules.slack}
        worst = min(late, key=lambda model: late[model])
        seconds = self._state.wanting * SAMPLE_S * LOOKS_PER_DECISION
        reason = (
            f"{worst} takes {1 - late[worst]:.0%} of its objective since {seconds:g} s on "
            f"{self._gpu_uuid}, which runs at {self.clock_mhz} MHz and may run no faster"
        )
        return ScaleOut(self._gpu_uuid, tuple(sorted(late)), reason.replace("%", " %"))

    def _note(self, partitions: Sequence[Partition]) -> None:
        self.slack = {}
        for partition in partitions:
            if partition.proven_s is not None:
                model = partition.segment.model
                self.slack[model] = min(self.slack.get(model, 1.0), partition.slack)


def energy_floor(
    partitions: Iterable[Partition], ratios: tuple[float, ...], curve: ClockCurve
) -> float:
    """Return the least clock that saves energy, of the segment that wants the highest.

    mu-Serve (ATC'24) drops the clock for as long as objectives hold. But a lower clock draws less
    power for longer: one request by itself takes least energy around half of a V100's highest
    clock, and at the highest of a consumer GPU. Where requests share batches, slower batches are
    fuller, and it pays to go lower.

    Args:
        partitions: The segments on a GPU. Where costs are not known, requests are taken to come
            one by one.
        ratios: Clocks that it supports, over its highest.
        curve: How it follows them; of segments whose costs are not known.

    Returns:
        Over the highest clock; 0: nothing runs.
    """
    return max((_most_efficient(each, ratios, curve) for each in partitions), default=0.0)


def _most_efficient(one: Partition, ratios: tuple[float, ...], curve: ClockCurve) -> float:
    segment = one.segment
    if segment.costs is None:
        return _by_curve(segment.sensitivity, ratios, curve)
    curves = segment.costs.curves
    best = min(
        curves,
        key=lambda each: (energy_j(each, one.rate_rps, segment.processes), -each.clock_ratio),
    )
    return best.clock_ratio


@cache
def _by_curve(sensitivity: float, ratios: tuple[float, ...], curve: ClockCurve) -> float:
    return curve.thriftiest(sensitivity, ratios)


def energy_j(curve: CostCurve, rate_rps: float, processes: int) -> float:
    """Return the active energy of one request at one clock, J; inf: that is too slow for the load.

    A batch holds what came during the one before: the size at which all processes together just
    keep up, but at least one request.
    """
    sizes = range(1, len(curve.latency_s) + 1)
    costs = [curve.at(size, processes) for size in sizes]
    keeps_up_rps = [
        size * processes / cost.latency_s for size, cost in zip(sizes, costs, strict=True)
    ]
    each_j = [cost.energy_j / size for size, cost in zip(sizes, costs, strict=True)]
    if rate_rps > keeps_up_rps[-1]:
        return inf
    return float(np.interp(rate_rps, keeps_up_rps, each_j))

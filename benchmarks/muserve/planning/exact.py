"""The best placement on a group's devices: a mixed-integer program of Algorithm 2's objective.

Variables, per partition p, model m, device d and clock level k:

    x_pd  p is on d      z_md  m uses d      w_dk  d runs at level k      (all binary)

    sum_d x_pd = 1                    sum_p memory_p x_pd <= memory_d
    sum_k w_dk = 1                    sum_p load_p x_pd <= most_load
    x_pd <= z_md, sum_d z_md <= CT    x_pd <= sum_{k >= k_p} w_dk

    minimise  sum_dk ratio_k w_dk   and, of equals, devices per model
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.muserve.planning import power_aware
from benchmarks.muserve.planning.model import (
    LIMITS,
    Demand,
    Device,
    Limits,
    Placement,
    clock_ratios,
)
from services.planner.core.solver.milp import Goal, Numbers, Program, Solution

TIME_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """A placement. Attributes: placement; whether no other has a smaller sum of clocks."""

    placement: Placement
    proven: bool


def place(
    devices: Sequence[Device],
    demands: Sequence[Demand],
    limits: Limits = LIMITS,
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> Found | None:
    """Return the placement with the least sum of clocks; None: none was found in time.

    Never worse than Algorithm 2's, which it returns where time runs out before anything better is
    found.

    Args:
        devices: Of one group.
        demands: Partitions of all its models.
        limits: Limits of the placement.
        time_limit_s: Longest the search may take, s.
    """
    greedy = power_aware.place(devices, demands, limits)
    model = _Model(devices, demands, limits)
    goals = (Goal(model.clocks), Goal(model.spread, tolerance=1.0, nodes=1))
    solution = model.program.minimise(goals, time_limit_s=time_limit_s)
    if solution is None:
        return Found(greedy, proven=False) if greedy else None
    placement = model.placement(solution)
    proven = solution.outcomes[0].distance == 0
    total = _total(placement, devices, limits)
    if greedy is not None and not proven and _total(greedy, devices, limits) < total:
        return Found(greedy, proven=False)
    return Found(placement, proven)


def _total(placement: Placement, devices: Sequence[Device], limits: Limits) -> float:
    return sum(clock_ratios(placement, tuple(devices), limits).values())


class _Model:
    """The program. Attributes: program; clocks and spread, its goals."""

    def __init__(
        self, devices: Sequence[Device], demands: Sequence[Demand], limits: Limits
    ) -> None:
        self._devices, self._demands = devices, demands
        self._ratios = sorted({limits.idle_ratio, *(each.clock_ratio for each in demands)})
        self.program = program = Program()
        self._at = [program.columns(len(devices), upper=1.0, integer=True) for _ in demands]
        self._levels = [
            program.columns(len(self._ratios), upper=1.0, integer=True) for _ in devices
        ]
        for columns in (*self._at, *self._levels):
            program.row([(int(each), 1.0) for each in columns], low=1.0, high=1.0)
        self._add_room(limits)
        self.spread = self._add_spread(limits)
        self.clocks = self._add_clocks()
        self._order_equals()

    def placement(self, solution: Solution) -> dict[Demand, Device]:
        """Return what a solution stands for."""
        return {
            demand: self._devices[[solution.count(each) for each in columns].index(1)]
            for demand, columns in zip(self._demands, self._at, strict=True)
        }

    def _add_room(self, limits: Limits) -> None:
        for number, device in enumerate(self._devices):
            columns = [int(each[number]) for each in self._at]
            # In shares of the device: rows of like size keep the solver's tolerances meaningful.
            memory = [d.partition.memory_bytes / device.memory_bytes for d in self._demands]
            loads = [each.load for each in self._demands]
            self.program.row(zip(columns, memory, strict=True), high=1.0)
            self.program.row(zip(columns, loads, strict=True), high=limits.most_load)

    def _add_spread(self, limits: Limits) -> dict[int, float]:
        count = len(self._devices)
        uses: dict[str, Numbers] = {}
        for demand, columns in zip(self._demands, self._at, strict=True):
            name = demand.partition.model
            if name not in uses:
                uses[name] = self.program.columns(count, upper=1.0)
                self.program.row([(int(z), 1.0) for z in uses[name]], high=limits.most_devices)
            below = self.program.rows(count, high=0.0)
            self.program.terms(below, columns, 1.0)
            self.program.terms(below, uses[name], -1.0)
        return {int(column): 1.0 for columns in uses.values() for column in columns}

    def _add_clocks(self) -> dict[int, float]:
        for demand, columns in zip(self._demands, self._at, strict=True):
            enough = self._ratios.index(demand.clock_ratio)
            for column, levels in zip(columns, self._levels, strict=True):
                high = [(int(each), -1.0) for each in levels[enough:]]
                self.program.row([(int(column), 1.0), *high], high=0.0)
        return {
            int(column): ratio
            for levels in self._levels
            for column, ratio in zip(levels, self._ratios, strict=True)
        }

    def _order_equals(self) -> None:
        """Equal devices in order of their clocks: else each answer comes in all permutations."""
        for (one, fast), (other, slow) in pairwise(zip(self._devices, self._levels, strict=True)):
            if one.memory_bytes == other.memory_bytes:
                terms = [(int(c), r) for c, r in zip(fast, self._ratios, strict=True)]
                terms += [(int(c), -r) for c, r in zip(slow, self._ratios, strict=True)]
                self.program.row(terms, low=0.0)

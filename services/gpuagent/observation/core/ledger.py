"""The energy of one GPU by the workloads on it, also those of others. Pure.

Of each window's energy the idle part is booked apart; the rest goes to the workloads by the time
in which their kernels ran. total = idle + unattributed + the workloads' active energy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from services.gpuagent.energy.core.attribution import EnergyWindow, attribute
from services.kit.units import J_PER_KWH

EnergyMethod = Literal["process_utilization", "instance_utilization", "slices_held", "none"]
"""Origin of the shares: SM time of each process, or of each GPU instance; the SMs of the GPU
instances that processes hold; nothing, where the driver shows no process."""

MAX_WORKLOADS: Final = 256
OTHERS: Final = "others"
"""Entry of workloads beyond MAX_WORKLOADS."""

PARK_S: Final = 60.0
"""Time without computation after which a GPU could be given up, s: a server's boot is as long."""

_LAG_S: Final = 6.0
"""Time that active energy waits for a sample of the process that drew it, s."""

_QUIET: Final = 3
"""Windows without computation after which their mean power replaces the type's idle power."""

_WARM: Final = 0.1
"""Share of the power limit by which a board that computes nothing may draw more than its type."""

_DECAY: Final = 0.05
"""Weight of a further window in that mean."""

_IMPLAUSIBLE: Final = 2.0
"""Multiple of the power limit above which a meter's step is a fault of the meter."""

_STEP_J: Final = 200.0
"""Energy by which a counter may step at once, J: it is brought up to date ten times a second."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The readings of a GPU at one moment.

    Attributes:
        now_s: Monotonic time, s.
        energy_j: The meter, J.
        active: Activity of each workload since the observation before, >= 0, in any one unit.
        memory: Memory of each workload that has a process on the GPU, bytes; 0: not known.
        method: Origin of `active`.
        busy: Share of the time in which any kernel ran, as the driver says, 0..1; None: unknown.
        gco2e_per_kwh: Carbon intensity of the electricity; None: not known.
    """

    now_s: float
    energy_j: float
    active: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    method: EnergyMethod = "none"
    busy: float | None = None
    gco2e_per_kwh: float | None = None


@dataclass(slots=True)
class WorkloadEnergy:
    """Energy of one workload on one GPU.

    Attributes:
        active_j: Active energy attributed to it, J.
        idle_share_j: Its share of the idle energy, by memory held: part of the GPU's, J.
        carbon_gco2e: Emissions of both, while the intensity was known.
        held_s: Time in which it had a process on the GPU, s.
        memory_bytes: Memory that it held last; 0: not known.
        method: Origin of its share.
    """

    active_j: float = 0.0
    idle_share_j: float = 0.0
    carbon_gco2e: float = 0.0
    held_s: float = 0.0
    memory_bytes: int = 0
    method: EnergyMethod = "none"


class GpuLedger:
    """The account of one GPU since it was first observed.

    Args:
        idle_w: Power of its type without a CUDA context, W.
        context_w: The same with one, and nothing computed, W.
        max_w: Power limit, W.

    Attributes:
        total_j, idle_j, unattributed_j: Energy metered, idle, and active of no known workload, J.
        carbon_gco2e: Emissions of all of it, while the intensity was known.
        known_j: Energy of which the emissions are known, J.
        refused_j: Steps of the meter that no GPU can draw; not part of the total, J.
        observed_s: Time, s.
        busy_s: Time in which some workload computed, s; where the driver does not say, of whole
            windows.
        parkable_s: Time with a context and without computation, after the first PARK_S of each
            such stretch, s.
        workloads: Energy by workload.
    """

    def __init__(self, idle_w: float, context_w: float, max_w: float) -> None:
        self.total_j = self.idle_j = self.unattributed_j = self.refused_j = 0.0
        self.carbon_gco2e = self.known_j = 0.0
        self.observed_s = self.busy_s = self.parkable_s = self._quiet_s = 0.0
        self._gco2e_per_j = 0.0
        self.workloads: dict[str, WorkloadEnergy] = {}
        self._typical_w = {False: idle_w, True: context_w}
        self._quiet_w: dict[bool, tuple[int, float]] = {}
        self._max_w = max_w
        self._last: Observation | None = None
        self._pending_j = self._pending_s = 0.0
        self._quiet_power_w: float | None = None
        self._had_context: bool | None = None
        self._was_active = True  # the first window may follow work that was not seen

    def idle_w(self, *, has_context: bool) -> float:
        """Return the power while nothing is computed, W: measured where it was seen."""
        windows, mean_w = self._quiet_w.get(has_context, (0, 0.0))
        return mean_w if windows >= _QUIET else self._typical_w[has_context]

    def idle_is_measured(self, *, has_context: bool) -> bool:
        """Return whether that power was measured here, and is not the type's."""
        return self._quiet_w.get(has_context, (0, 0.0))[0] >= _QUIET

    def observe(self, seen: Observation) -> None:
        """Book the energy since the last observation.

        A counter that went back, a clock that did, and a step that no GPU can draw begin a new
        window and book nothing.
        """
        before, self._last = self._last, seen
        if before is None:
            return
        length_s, total_j = seen.now_s - before.now_s, seen.energy_j - before.energy_j
        if not (math.isfinite(total_j) and length_s > 0 and total_j >= 0):
            self._last = seen if math.isfinite(seen.energy_j) else before
            return
        if total_j > _IMPLAUSIBLE * self._max_w * length_s + _STEP_J:
            self.refused_j += total_j
            return
        self._book(seen, length_s, total_j)

    def _book(self, seen: Observation, length_s: float, total_j: float) -> None:
        has_context = bool(seen.memory)
        active = self._bounded(seen.active)
        is_active = any(value > 0 for value in active.values())
        quiet = not is_active and not self._was_active and has_context == self._had_context
        if quiet and self._quiet_power_w is not None:  # between two quiet windows
            self._learn_idle(self._quiet_power_w, has_context=has_context)
        self._quiet_power_w = total_j / length_s if quiet else None
        self._had_context = has_context
        idle_j = min(self.idle_w(has_context=has_context) * length_s, total_j)
        self.total_j += total_j
        self._gco2e_per_j = (seen.gco2e_per_kwh or 0.0) / J_PER_KWH
        self.carbon_gco2e += total_j * self._gco2e_per_j
        self.known_j += total_j if seen.gco2e_per_kwh is not None else 0.0
        self.observed_s += length_s
        self.idle_j += idle_j
        self._attribute(active, total_j - idle_j, length_s)
        self._share_idle(self._bounded(seen.memory), idle_j, length_s)
        for name in active:
            self.workloads[name].method = seen.method
        busy = float(is_active) if seen.busy is None else min(max(seen.busy, 0.0), 1.0)
        self.busy_s += length_s * busy
        self._quiet_s = self._quiet_s + length_s if has_context and not is_active else 0.0
        self.parkable_s += min(max(self._quiet_s - PARK_S, 0.0), length_s)
        self._was_active = is_active

    def _bounded(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return finite values >= 0 by workload; those beyond the bound are one workload."""
        found: dict[str, float] = {}
        for name, value in values.items():
            key = name if name in self.workloads or self._has_room() else OTHERS
            self.workloads.setdefault(key, WorkloadEnergy())
            usable = value if math.isfinite(value) and value > 0 else 0.0
            found[key] = found.get(key, 0.0) + usable
        return found

    def _has_room(self) -> bool:
        """Return whether one more workload fits; the oldest that has ended makes room."""
        if len(self.workloads) < MAX_WORKLOADS:
            return True
        held = {*self._last.memory, *self._last.active} if self._last else ()
        ended = (name for name in self.workloads if name != OTHERS and name not in held)
        oldest = next(ended, None)
        if oldest is None:
            return False
        entry = self.workloads.pop(oldest)
        others = self.workloads.setdefault(OTHERS, WorkloadEnergy())
        others.active_j += entry.active_j
        others.idle_share_j += entry.idle_share_j
        others.carbon_gco2e += entry.carbon_gco2e
        return True

    def _learn_idle(self, power_w: float, *, has_context: bool) -> None:
        if power_w > self._typical_w[has_context] + _WARM * self._max_w:
            return  # something computes that the driver does not show
        windows, mean_w = self._quiet_w.get(has_context, (0, 0.0))
        weight = max(1 / (windows + 1), _DECAY)
        self._quiet_w[has_context] = windows + 1, mean_w + weight * (power_w - mean_w)

    def _attribute(self, active: Mapping[str, float], rest_j: float, length_s: float) -> None:
        """Book active energy; a driver's samples may come a window later than the energy."""
        parts = attribute(EnergyWindow(self._pending_j + rest_j, 0.0, active))
        for name, part_j in parts.active_j.items():
            self.workloads[name].active_j += part_j
            self.workloads[name].carbon_gco2e += part_j * self._gco2e_per_j
        if parts.active_j:
            self._pending_j = self._pending_s = 0.0
            return
        self._pending_j, self._pending_s = parts.unattributed_j, self._pending_s + length_s
        if self._pending_s >= _LAG_S:
            self.settle()

    def settle(self) -> None:
        """Book as unattributed what still waits for a sample."""
        self.unattributed_j += self._pending_j
        self._pending_j = self._pending_s = 0.0

    def _share_idle(self, memory: Mapping[str, float], idle_j: float, length_s: float) -> None:
        held_bytes = sum(memory.values())
        for name, size_bytes in memory.items():
            entry = self.workloads[name]
            entry.held_s += length_s
            entry.memory_bytes = int(size_bytes)
            share = size_bytes / held_bytes if held_bytes > 0 else 1 / len(memory)
            entry.idle_share_j += idle_j * share
            entry.carbon_gco2e += idle_j * share * self._gco2e_per_j

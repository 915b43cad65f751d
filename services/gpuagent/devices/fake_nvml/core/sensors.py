"""Power and energy of one simulated GPU, by the work on it, with the habits of real sensors."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuState
from services.kit.hardware.gpu_types import GpuTable


class ActivityMeter(Protocol):
    """The work on one simulated GPU, as the process that does it measures it: none."""

    def energy_j(self) -> float:
        """Return the active energy since the meter was made, work in progress included, J."""
        return 0.0

    def power_w(self) -> float:
        """Return the active power drawn now, W; idle power is apart."""
        return 0.0

    def context_s(self) -> float:
        """Return for how long a process has had a CUDA context, since the meter was made, s."""
        return 0.0

    def in_use(self) -> bool:
        """Return whether a live process has a CUDA context."""
        return False

    def busy(self, slice_uuid: str) -> bool:  # noqa: ARG002 - nothing runs
        """Return whether a live process holds a slice.

        Args:
            slice_uuid: A MIG UUID, or the GPU's where it is not cut.
        """
        return False

    def processes(self) -> Iterable[ProcessActivity]:
        """Return the live processes that have a CUDA context."""
        return ()

    def set_clock_ratio(self, ratio: float) -> None:  # noqa: ARG002 - nothing runs
        """Learn the SM clock.

        Args:
            ratio: Clock in force over the highest, 0 < ratio <= 1.
        """
        return


class NoActivity(ActivityMeter):
    """A GPU on which nothing ever runs."""


ENERGY_TICK_S: Final = 0.1
"""The energy counter of real boards is brought up to date every 10 to 100 ms (zeus#181)."""

POWER_WINDOW_S: Final = 1.0
"""NVML_FI_DEV_POWER_AVERAGE: "averaged over 1 sec interval" (nvml.h)."""


class Sensors:
    """Measures a GPU from the work on it.

    Args:
        table: The GPU's type.
        activity: The work on it.
        clock: Seconds that never go back while the machine runs.
    """

    def __init__(
        self, table: GpuTable, activity: ActivityMeter, clock: Callable[[], float]
    ) -> None:
        self._idle_power_w = table.idle_power_w
        self._use_power_w = table.context_power_w - table.idle_power_w
        self._activity = activity
        self._clock = clock
        self._base_j = 0.0  # active energy of meters before the present one
        self._last_j = 0.0
        self._counter: tuple[float, float] | None = None  # tick, J
        self._looks: deque[tuple[float, float]] = deque()  # when, J; newest last

    def _drawn_j(self) -> float:
        """Return the energy beyond idle since the meter was made, J: contexts and computing."""
        return self._use_power_w * self._activity.context_s() + self._activity.energy_j()

    def start(self, state: GpuState) -> None:
        """Continue from a saved state, also with an activity meter that starts at 0."""
        is_new_meter = self._drawn_j() < state.active_seen_j
        self._base_j = state.active_base_j + (state.active_seen_j if is_new_meter else 0.0)

    def begun(self, state: GpuState) -> GpuState:
        """Return a state whose energy counter stands at 0 now."""
        seen_j = self._drawn_j()
        return replace(
            state, powered_at_s=self._clock(), active_base_j=-seen_j, active_seen_j=seen_j
        )

    def saved_state(self, state: GpuState) -> GpuState:
        """Return a state with the active energy so far written down."""
        seen_j = self._drawn_j()
        return replace(state, active_base_j=self._base_j, active_seen_j=seen_j)

    def energy_j(self, state: GpuState) -> float:
        """Return the energy of the whole GPU, J; it begins at 0 when the machine does."""
        now_s = self._clock()
        powered_at_s = now_s if state.powered_at_s is None else state.powered_at_s
        idle_j = self._idle_power_w * max(now_s - powered_at_s, 0.0)
        saved_j = state.active_base_j + state.active_seen_j  # all that a mere reader can know
        active_j = max(saved_j, self._base_j + self._drawn_j())
        self._last_j = max(self._last_j, idle_j + active_j)
        if not self._looks or now_s > self._looks[-1][0]:
            self._looks.append((now_s, self._last_j))
        # Those of the last second, and the newest one before it.
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= POWER_WINDOW_S:
            self._looks.popleft()
        return self._last_j

    def counter_j(self, state: GpuState) -> float:
        """Return what the energy counter shows: the same all through one of its ticks, J."""
        tick = self._clock() // ENERGY_TICK_S
        if self._counter is None or self._counter[0] != tick:
            self._counter = (tick, self.energy_j(state))
        return self._counter[1]

    def power_w(self) -> float:
        """Return the power of the whole GPU at this instant, W."""
        used_w = self._use_power_w if self._activity.in_use() else 0.0
        return self._idle_power_w + used_w + self._activity.power_w()

    def average_power_w(self, state: GpuState) -> float:
        """Return the mean power over the last second, W.

        Nothing samples a simulated GPU in between, so the mean is over the time since it was
        last looked at a second or more ago; where that is too long ago, it is the instant's.
        """
        energy_j, now_s = self.energy_j(state), self._clock()
        then_s, then_j = self._looks[0]
        if POWER_WINDOW_S <= now_s - then_s < 2 * POWER_WINDOW_S:
            return (energy_j - then_j) / (now_s - then_s)
        return self.power_w()

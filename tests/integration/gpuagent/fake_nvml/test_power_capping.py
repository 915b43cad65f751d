"""A power limit that lowers the clock under load: the rule, and the simulated GPU that follows it.

The load here answers to the clock as the published curve says: a closed loop, like a real board.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.core import gpu_types
from services.gpuagent.devices.fake_nvml import NoActivity
from services.gpuagent.devices.fake_nvml.core.power_capping import WINDOW_S, LoadWindow, allowed_mhz
from services.kit.profiles.core.clock_curve import power_ratio
from tests.support.gpuagent.nvml_calls import gpu

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Time

H100 = gpu_types.load("h100-80gb")


@dataclass
class Load(NoActivity):
    """Work that draws `full_w` at the highest clock, and less at lower ones."""

    full_w: float = 0.0
    ratio: float = 1.0
    joules: float = 0.0

    def energy_j(self) -> float:
        return self.joules

    def power_w(self) -> float:
        return self.full_w * power_ratio(self.ratio) if self.full_w else 0.0

    def set_clock_ratio(self, ratio: float) -> None:
        self.ratio = ratio


def run(load: Load, clock: Time, seconds: float) -> None:
    """Let time pass, with the agent's two looks a second."""
    for _ in range(round(seconds * 2)):
        clock.now_s += 0.5
        load.joules += load.power_w() * 0.5
        pynvml.nvmlDeviceGetPowerUsage(gpu())


@given(
    active_w=st.floats(0, 2000),
    budget_w=st.floats(0, 1000),
    clock_mhz=st.sampled_from(H100.clocks_mhz),
)
def test_the_allowed_clock_is_the_highest_within_the_budget(
    active_w: float, budget_w: float, clock_mhz: int
) -> None:
    top_mhz = H100.max_clock_mhz
    allowed = allowed_mhz(H100.clocks_mhz, clock_mhz, active_w, budget_w)
    full_w = active_w / power_ratio(clock_mhz / top_mhz)
    within = [c for c in H100.clocks_mhz if full_w * power_ratio(c / top_mhz) <= budget_w]

    assert allowed == max(within, default=H100.clocks_mhz[-1])


def test_load_is_measured_over_whole_windows() -> None:
    window = LoadWindow()

    assert window.mean_power_w(10.0, 100.0) is None
    assert window.mean_power_w(10.0 + WINDOW_S / 2, 150.0) is None
    assert window.mean_power_w(10.0 + WINDOW_S, 100.0 + 80 * WINDOW_S) == pytest.approx(80.0)
    assert window.mean_power_w(10.0 + 1.5 * WINDOW_S, 1000.0) is None
    assert window.mean_power_w(5.0, 1000.0) is None, "the wall clock was set back"


@pytest.mark.parametrize("limit_w", [250.0, 400.0, 600.0])
def test_under_load_the_clock_falls_until_the_limit_holds(
    start: Start, clock: Time, limit_w: float
) -> None:
    load = Load(full_w=630.0)
    start("h100-80gb", activity=lambda _: load, clock=clock)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), round(limit_w * 1000))
    run(load, clock, 3)
    drawn_w = H100.idle_power_w + load.power_w()

    assert 0.97 * limit_w < drawn_w <= limit_w
    clock_mhz = pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM)
    assert clock_mhz == pytest.approx(load.ratio * H100.max_clock_mhz)
    assert clock_mhz < H100.max_clock_mhz
    capped = pynvml.nvmlClocksEventReasonSwPowerCap
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) & capped


def test_when_the_load_goes_the_clock_comes_back(start: Start, clock: Time) -> None:
    load = Load(full_w=630.0)
    start("h100-80gb", activity=lambda _: load, clock=clock)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000)
    run(load, clock, 2)
    assert load.ratio < 1

    load.full_w = 0.0
    run(load, clock, 1)

    assert load.ratio == 1
    idle = pynvml.nvmlClocksEventReasonGpuIdle
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == idle


def test_raising_the_limit_frees_the_clock_at_once(start: Start, clock: Time) -> None:
    load = Load(full_w=630.0)
    start("h100-80gb", activity=lambda _: load, clock=clock)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000)
    run(load, clock, 2)

    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 700_000)

    assert load.ratio == 1


def test_a_locked_clock_is_never_raised_by_the_limit(start: Start, clock: Time) -> None:
    load = Load(full_w=630.0)
    start("h100-80gb", activity=lambda _: load, clock=clock)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 600_000)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 990, 990)
    run(load, clock, 2)

    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 990
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 200_000)
    run(load, clock, 2)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) < 990


def test_at_the_boards_own_limit_nothing_is_throttled(start: Start, clock: Time) -> None:
    load = Load(full_w=5000.0)
    start("h100-80gb", activity=lambda _: load, clock=clock)
    run(load, clock, 2)

    assert load.ratio == 1

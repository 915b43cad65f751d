"""Clocks, power and energy of simulated GPUs, asked through unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent import gpu_table
from services.gpuagent.simulator import NoActivity, SimulatedNvml, install
from tests.unit.gpuagent.nvml_calls import gpu

if TYPE_CHECKING:
    from tests.unit.gpuagent.conftest import Start, Work


class Burnt(NoActivity):
    """Work of which only the energy matters."""

    joules = 0.0

    def energy_j(self) -> float:
        return self.joules


@pytest.mark.parametrize(
    ("asked", "clock_mhz"), [(1410, 1410), (1000, 1005), (1, 210), (9999, 1410), (700, 705)]
)
def test_locked_clocks_go_to_the_nearest_supported_one(
    start: Start, work: Work, asked: int, clock_mhz: int
) -> None:
    start(activity=lambda _: work)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), asked, asked)

    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == clock_mhz
    assert work.ratios[-1] == pytest.approx(clock_mhz / 1410)
    pynvml.nvmlDeviceResetGpuLockedClocks(gpu())
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 1410
    assert work.ratios[-1] == 1


def test_symbolic_clocks_unlock(start: Start) -> None:
    start()
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 705, 705)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 0xFFFFFF02, 0xFFFFFF01)

    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 1410


def test_clock_ranges_that_make_no_sense_are_refused(start: Start) -> None:
    start()
    for least, most in [(1000, 500), (500, 0xFFFFFF02), (0xFFFFFF01, 1000)]:
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), least, most)


@pytest.mark.parametrize("name", gpu_table.names())
def test_supported_clocks_and_limits_are_the_tables(start: Start, name: str) -> None:
    start(name)
    table, handle = gpu_table.load(name), gpu()
    (memory_mhz,) = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)
    clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
    limits_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)

    assert tuple(clocks) == table.clocks_mhz
    assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) == clocks[0]
    assert limits_mw == [table.min_power_limit_w * 1000, table.max_power_w * 1000]
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == table.memory_bytes


def test_power_limits_are_kept_within_the_board_range(start: Start) -> None:
    start()
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 250_000)

    assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == 250_000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu()) == 250_000
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu()) == 400_000
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 99_000)


@given(steps=st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e6)), min_size=1, max_size=10))
def test_energy_is_idle_power_times_time_plus_active_energy(
    steps: list[tuple[float, float]],
) -> None:
    """Conservation, to the counter's millijoule; and it never goes back."""
    work, now_s = Burnt(), 0.0
    restore = install(SimulatedNvml("node", ["t4"], activity=lambda _: work, clock=lambda: now_s))
    pynvml.nvmlInit()
    last_mj = 0
    for pause_s, joules in steps:
        now_s += pause_s
        work.joules += joules
        energy_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
        assert energy_mj == pytest.approx((30.0 * now_s + work.joules) * 1000, abs=2)
        assert energy_mj >= last_mj
        last_mj = energy_mj
    restore()


def test_power_is_idle_plus_active_in_every_way_of_asking(start: Start, work: Work) -> None:
    work.watts = 100.25
    start(activity=lambda _: work)
    average, instant, energy, unknown = pynvml.nvmlDeviceGetFieldValues(gpu(), [185, 186, 83, 1])

    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 155_250
    assert average.value.uiVal == instant.value.uiVal == 155_250
    assert energy.nvmlReturn == pynvml.NVML_SUCCESS
    assert unknown.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_pascal_has_neither_energy_counter_nor_clock_lock(start: Start) -> None:
    start("p4")
    calls: tuple[Callable[[], object], ...] = (
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 1000, 1000),
        lambda: pynvml.nvmlDeviceResetGpuLockedClocks(gpu()),
        lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu()),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()

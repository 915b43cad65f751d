"""Clocks, power and energy of simulated GPUs, read through unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.devices.fake_nvml.core.sensors import NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.kit.hardware import gpu_types
from tests.support.gpuagent.nvml_calls import gpu

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Time, Work


AVERAGES = {name: gpu_types.load(name).averages_power for name in gpu_types.names("nvidia")}


class Burnt(NoActivity):
    """Work of which only the energy matters."""

    joules = 0.0

    def energy_j(self) -> float:
        return self.joules


@pytest.mark.parametrize(
    ("wanted_mhz", "clock_mhz"), [(1410, 1410), (1000, 1005), (1, 210), (9999, 1410), (700, 705)]
)
def test_locked_clocks_go_to_the_nearest_supported_one(
    start: Start, work: Work, wanted_mhz: int, clock_mhz: int
) -> None:
    start(activity=lambda _: work)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), wanted_mhz, wanted_mhz)

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


@pytest.mark.parametrize("name", gpu_types.names("nvidia"))
def test_supported_clocks_and_limits_are_the_tables(start: Start, name: str) -> None:
    start(name)
    table, handle = gpu_types.load(name), gpu()
    (memory_mhz,) = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)
    clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)

    assert tuple(clocks) == table.clocks_mhz
    assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) == clocks[0]
    for limit in (
        pynvml.nvmlDeviceGetEnforcedPowerLimit,
        pynvml.nvmlDeviceGetPowerManagementDefaultLimit,
    ):
        assert limit(handle) == table.max_power_w * 1000
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == table.memory_bytes


@given(steps=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), min_size=1, max_size=10))
def test_energy_is_idle_power_times_time_plus_active_energy(
    steps: list[tuple[int, float]],
) -> None:
    """Conservation, to the counter's millijoule, at any pauses of one tick and more."""
    work, tenths = Burnt(), 0
    library = FakeNvml("node", ["t4"], activity=lambda _: work, clock=lambda: (tenths + 0.5) / 10)
    restore = install(library)
    pynvml.nvmlInit()
    last_mj = 0
    for pause, joules in steps:
        tenths += 1 + pause
        work.joules += joules
        energy_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
        assert energy_mj == pytest.approx((1.0 * tenths + work.joules) * 1000, abs=2)
        assert energy_mj >= last_mj
        last_mj = energy_mj
    restore()


def test_the_energy_counter_moves_once_per_tick(start: Start, work: Work, clock: Time) -> None:
    """A profiler's trap: two readings within 100 ms say nothing of what lies between."""
    start(activity=lambda _: work, clock=clock)
    clock.now_s += 0.01
    seen = []
    for _ in range(8):  # every 25 ms, four within a tick
        seen.append(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()))
        work.joules += 100.0
        clock.now_s += 0.025

    assert seen == [seen[0]] * 4 + [seen[4]] * 4
    assert seen[4] - seen[0] == pytest.approx((29 * 0.1 + 400) * 1000, abs=2)


@pytest.mark.parametrize("name", [t for t in gpu_types.names("nvidia") if AVERAGES[t]])
def test_since_ampere_power_is_the_mean_of_the_last_second(
    start: Start, work: Work, clock: Time, name: str
) -> None:
    """nvml.h on nvmlDeviceGetPowerUsage."""
    start(name, activity=lambda _: work, clock=clock)
    idle_w = gpu_types.load(name).idle_power_w
    for _ in range(4):  # 100 W for a second, looked at every half
        pynvml.nvmlDeviceGetPowerUsage(gpu())
        work.joules += 50.0
        clock.now_s += 0.5
    work.watts = 300.0  # begins now: the mean knows nothing of it yet

    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == pytest.approx((idle_w + 100) * 1000, abs=2)


@pytest.mark.parametrize("name", [t for t in gpu_types.names("nvidia") if not AVERAGES[t]])
def test_on_ga100_and_older_power_is_the_instants(start: Start, work: Work, name: str) -> None:
    start(name, activity=lambda _: work)
    idle_w = gpu_types.load(name).idle_power_w
    work.watts = 100.25

    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == round((idle_w + 100.25) * 1000)


def test_only_volta_to_ga100_and_pascal_report_power_of_the_instant() -> None:
    instant = {name for name, averages in AVERAGES.items() if not averages}

    assert instant == {"a100-40gb", "a100-80gb", "a30", "p4", "t4", "v100"}


def test_pascal_has_neither_energy_counter_nor_clock_lock(start: Start) -> None:
    start("p4")
    calls: tuple[Callable[[], object], ...] = (
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()),
        lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 1000, 1000),
        lambda: pynvml.nvmlDeviceResetGpuLockedClocks(gpu()),
    )
    for call in calls:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call()

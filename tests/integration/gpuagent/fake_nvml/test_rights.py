"""Who may call what on simulated GPUs, and what onlookers see, through unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from services.gpuagent.devices.fake_nvml.fake_node import ROOT, UNPRIVILEGED, Right
from services.gpuagent.devices.fake_nvml.library import install
from services.kit.mig import Placement
from tests.support.gpuagent.nvml_calls import A100, create_a100, gpu, mig_gpu, read_layout

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start, Time, Work

Call = Callable[[Any], object]


def _instances(handle: Any) -> object:
    array, count = (pynvml.c_nvmlGpuInstance_t * 7)(), c_uint()
    return pynvml.nvmlDeviceGetGpuInstances(handle, 19, array, byref(count))


READING: dict[str, Call] = {
    "name": pynvml.nvmlDeviceGetName,
    "mode": pynvml.nvmlDeviceGetMigMode,
    "power": pynvml.nvmlDeviceGetPowerUsage,
    "energy": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "clock": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "profile": lambda handle: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0),
}
LOOKING_AT_SLICES: dict[str, Call] = {
    "instances": _instances,
    "capacity": lambda handle: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19),
}
CUTTING: dict[str, Call] = {
    "create": lambda handle: create_a100(handle, "1g.5gb", 6),
}
STEERING: dict[str, Call] = {
    "mode": lambda handle: pynvml.nvmlDeviceSetMigMode(handle, 1),
    "clock": lambda handle: pynvml.nvmlDeviceSetGpuLockedClocks(handle, 705, 705),
    "unlock": pynvml.nvmlDeviceResetGpuLockedClocks,
}


@pytest.mark.parametrize(
    ("rights", "may", "may_not"),
    [
        (UNPRIVILEGED, [READING], [LOOKING_AT_SLICES, CUTTING, STEERING]),
        (Right.MONITOR, [READING, LOOKING_AT_SLICES], [CUTTING, STEERING]),
        (Right.CONFIG, [READING, LOOKING_AT_SLICES, CUTTING], [STEERING]),
        (Right.ADMIN, [READING, LOOKING_AT_SLICES, CUTTING, STEERING], []),
        (ROOT, [READING, LOOKING_AT_SLICES, CUTTING, STEERING], []),
    ],
    ids=lambda value: str(value) if isinstance(value, Right) else "calls",
)
def test_each_right_allows_its_calls_and_no_others(
    start: Start, tmp_path: Path, rights: Right, may: list[Any], may_not: list[Any]
) -> None:
    start(state_dir=tmp_path)
    mig_gpu()
    start(state_dir=tmp_path, rights=rights)
    for call in (call for calls in may_not for call in calls.values()):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            call(gpu())
    for call in (call for calls in may for call in calls.values()):
        call(gpu())


def test_an_onlooker_sees_all_and_writes_nothing(
    start: Start, work: Work, clock: Time, tmp_path: Path
) -> None:
    """What `cinquefoil gpuagent smi` is beside an agent."""
    start(state_dir=tmp_path, activity=lambda _: work, clock=clock)
    create_a100(mig_gpu(), "3g.20gb", 4)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 705, 705)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    work.ratios.clear()
    work.joules, work.watts = 5000.0, 100.0

    start(state_dir=tmp_path, activity=lambda _: work, clock=clock, read_only=True)

    assert read_layout(gpu(), A100) == (Placement("3g.20gb", 4),)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 705
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 155_000
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) == 5_000_000
    for call in (*CUTTING.values(), *STEERING.values()):
        with pytest.raises(pynvml.NVMLError_NoPermission):
            call(gpu())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert work.ratios == []


def test_an_onlooker_sees_hardware_that_was_never_switched_on(start: Start, tmp_path: Path) -> None:
    start(state_dir=tmp_path / "none", read_only=True)

    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 55_000
    assert not (tmp_path / "none").exists()


def test_installing_an_onlooker_leaves_the_owner_as_it_was(start: Start, tmp_path: Path) -> None:
    owner = start(state_dir=tmp_path)
    start(state_dir=tmp_path, read_only=True)

    install(owner)
    create_a100(mig_gpu(), "1g.5gb", 0)

    assert read_layout(gpu(), A100) == (Placement("1g.5gb", 0),)

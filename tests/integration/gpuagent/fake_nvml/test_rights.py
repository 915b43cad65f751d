"""Rights on simulated GPUs, through unmodified pynvml."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from services.gpuagent.devices.fake_nvml.fake_node import ROOT, UNPRIVILEGED, Right
from tests.support.gpuagent.nvml_calls import create_a100, gpu, mig_gpu

if TYPE_CHECKING:
    from tests.support.gpuagent.fake_node import Start

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

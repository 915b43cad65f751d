"""NVML calls of the simulator's tests, always through unmodified pynvml."""

from ctypes import byref, c_uint
from typing import Any

import pynvml

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import GpuTable
from services.kit.mig import Layout

A100 = gpu_types.load("a100-40gb")


def gpu(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def mig_gpu() -> Any:
    handle = gpu()
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_SUCCESS
    return handle


def create(handle: Any, kind: SliceProfile, start: int) -> Any:
    where = pynvml.c_nvmlGpuInstancePlacement_t(start, kind.memory_slices)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        handle, kind.gpu_instance_profile_id, byref(where)
    )


def create_a100(handle: Any, profile: str, start: int) -> Any:
    return create(handle, A100.geometry.kind(profile), start)


def read_layout(handle: Any, table: GpuTable) -> Layout:
    found = []
    for kind in table.geometry.kinds:
        array, count = (pynvml.c_nvmlGpuInstance_t * kind.max_count)(), c_uint()
        pynvml.nvmlDeviceGetGpuInstances(handle, kind.gpu_instance_profile_id, array, byref(count))
        for instance in array[: count.value]:
            info = pynvml.nvmlGpuInstanceGetInfo(instance)
            assert info.profileId == kind.gpu_instance_profile_id
            assert info.placement.size == kind.memory_slices
            found.append(Placement(kind.name, info.placement.start))
    return tuple(sorted(found, key=lambda placement: placement.start))


def mig_uuids(handle: Any) -> list[str]:
    uuids = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            break
        uuids.append(pynvml.nvmlDeviceGetUUID(device))
    return uuids

"""NVML's functions about compute instances and the MIG devices that they are."""

from __future__ import annotations

from ctypes import c_uint, c_void_p
from typing import Any

import pynvml

from services.gpuagent.devices.fake_nvml.c_abi import (
    ADDRESS,
    COMPUTE_INSTANCE,
    DEVICE,
    GPU,
    GPU_INSTANCE,
    HANDLE_AT,
    MIG_DEVICE,
    UINT,
    UINT_AT,
    Exports,
    at,
    write_handle,
    write_handles,
)
from services.gpuagent.devices.fake_nvml.core import mig_rules
from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuInstance
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu, MigDevice
from services.gpuagent.devices.fake_nvml.fake_node import FakeNode
from services.gpuagent.devices.fake_nvml.rights import MIG_CHANGE, MIG_READ
from services.kit.units import BYTES_PER_MIB

exports = Exports()
_export = exports.function
_Instance = tuple[FakeGpu, GpuInstance]


# ---- compute instances -------------------------------------------------------------------------


def _fill_compute_profile(found: _Instance, profile: int, engines: int, info: Any) -> None:
    if (
        profile >= pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        or engines >= pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
    ):
        raise Fault(Code.INVALID_ARGUMENT)
    if profile >= len(mig_rules.COMPUTE_SLICES):
        raise Fault(Code.NOT_SUPPORTED)
    gpu, instance = found
    compute = mig_rules.compute_profile(gpu.kind(instance), profile)
    info.id = compute.id
    info.sliceCount = compute.slices
    info.instanceCount = compute.max_count
    info.multiprocessorCount = compute.sm_count


@_export(
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    GPU_INSTANCE,
    UINT,
    UINT,
    at(pynvml.c_nvmlComputeInstanceProfileInfo_t),
)
def _compute_profile_info(
    _: FakeNode, found: _Instance, profile: int, engines: int, info: Any
) -> None:
    _fill_compute_profile(found, profile, engines, info)


@_export(
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    GPU_INSTANCE,
    UINT,
    UINT,
    at(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t),
)
def _compute_profile_info_v2(
    _: FakeNode, found: _Instance, profile: int, engines: int, info: Any
) -> None:
    if info.version != pynvml.nvmlComputeInstanceProfileInfo_v2:
        raise Fault(Code.ARGUMENT_VERSION_MISMATCH)
    _fill_compute_profile(found, profile, engines, info)
    gpu, instance = found
    info.name = f"MIG {mig_rules.compute_profile(gpu.kind(instance), profile).name}".encode()


@_export(
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
    GPU_INSTANCE,
    UINT,
    UINT_AT,
    needs=MIG_READ,
)
def _compute_capacity(_: FakeNode, found: _Instance, profile_id: int, number: c_uint) -> None:
    gpu, instance = found
    kind = gpu.kind(instance)
    profile = mig_rules.compute_profile(kind, profile_id)
    number.value = mig_rules.compute_capacity(kind, instance, profile)


@_export("nvmlGpuInstanceCreateComputeInstance", GPU_INSTANCE, UINT, HANDLE_AT, needs=MIG_CHANGE)
def _create_compute_instance(
    node: FakeNode, found: _Instance, profile_id: int, handle: c_void_p
) -> None:
    gpu, instance = found
    compute = gpu.create_compute(instance, profile_id)
    handle.value = node.handle("compute instance", compute.uuid)


@_export("nvmlGpuInstanceGetComputeInstances", GPU_INSTANCE, UINT, ADDRESS, UINT_AT, needs=MIG_READ)
def _compute_instances(
    node: FakeNode, found: _Instance, profile_id: int, array: int | None, number: c_uint
) -> None:
    gpu, instance = found
    mig_rules.compute_profile(gpu.kind(instance), profile_id)
    uuids = [entry.uuid for entry in instance.compute if entry.profile_id == profile_id]
    write_handles(array, [node.handle("compute instance", uuid) for uuid in uuids], number)


@_export("nvmlGpuInstanceGetComputeInstanceById", GPU_INSTANCE, UINT, HANDLE_AT, needs=MIG_READ)
def _compute_instance_by_id(
    node: FakeNode, found: _Instance, number: int, handle: c_void_p
) -> None:
    for compute in found[1].compute:
        if compute.id == number:
            handle.value = node.handle("compute instance", compute.uuid)
            return
    raise Fault(Code.NOT_FOUND)


@_export("nvmlComputeInstanceGetInfo_v2", COMPUTE_INSTANCE, at(pynvml.c_nvmlComputeInstanceInfo_t))
def _compute_instance_info(node: FakeNode, device: MigDevice, info: Any) -> None:
    write_handle(info, "device", node.handle("device", device.gpu.uuid))
    write_handle(info, "gpuInstance", node.handle("gpu instance", device.instance.serial))
    info.id = device.compute.id
    info.profileId = device.compute.profile_id
    info.placement.start, info.placement.size = device.compute.start, device.compute.size


@_export("nvmlComputeInstanceDestroy", COMPUTE_INSTANCE, needs=MIG_CHANGE)
def _destroy_compute_instance(_: FakeNode, device: MigDevice) -> None:
    device.gpu.destroy_compute(device)


# ---- MIG devices -------------------------------------------------------------------------------


@_export("nvmlDeviceIsMigDeviceHandle", DEVICE, UINT_AT)
def _is_mig_device(_: FakeNode, device: FakeGpu | MigDevice, answer: c_uint) -> None:
    answer.value = isinstance(device, MigDevice)


@_export("nvmlDeviceGetMaxMigDeviceCount", GPU, UINT_AT)
def _max_mig_devices(_: FakeNode, gpu: FakeGpu, number: c_uint) -> None:
    enabled = gpu.table.mig_capable and gpu.state.mig_enabled
    most = max(kind.max_count for kind in gpu.table.geometry.kinds)
    number.value = most if enabled else 0


@_export("nvmlDeviceGetMigDeviceHandleByIndex", GPU, UINT, HANDLE_AT)
def _mig_device_by_index(node: FakeNode, gpu: FakeGpu, index: int, handle: c_void_p) -> None:
    gpu.need_mig()
    devices = gpu.mig_devices()
    if index >= len(devices):
        raise Fault(Code.NOT_FOUND)
    handle.value = node.handle("device", devices[index].compute.uuid)


@_export("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", MIG_DEVICE, HANDLE_AT)
def _parent_device(node: FakeNode, device: MigDevice, handle: c_void_p) -> None:
    handle.value = node.handle("device", device.gpu.uuid)


@_export("nvmlDeviceGetGpuInstanceId", MIG_DEVICE, UINT_AT)
def _gpu_instance_id(_: FakeNode, device: MigDevice, number: c_uint) -> None:
    number.value = device.instance.id


@_export("nvmlDeviceGetComputeInstanceId", MIG_DEVICE, UINT_AT)
def _compute_instance_id(_: FakeNode, device: MigDevice, number: c_uint) -> None:
    number.value = device.compute.id


@_export("nvmlDeviceGetAttributes_v2", MIG_DEVICE, at(pynvml.c_nvmlDeviceAttributes))
def _attributes(_: FakeNode, device: MigDevice, info: Any) -> None:
    profile = mig_rules.compute_profile(device.kind, device.compute.profile_id)
    info.multiprocessorCount = profile.sm_count
    info.gpuInstanceSliceCount = device.kind.compute_slices
    info.computeInstanceSliceCount = device.compute.size
    info.memorySizeMB = device.kind.memory_bytes // BYTES_PER_MIB

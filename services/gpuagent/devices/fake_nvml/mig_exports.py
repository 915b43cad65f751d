"""NVML's functions about MIG mode, GPU-instance profiles and GPU instances."""

from __future__ import annotations

from ctypes import c_uint, c_void_p
from typing import Any

import pynvml

from services.gpuagent.devices.fake_nvml.c_abi import (
    ADDRESS,
    GPU,
    GPU_INSTANCE,
    HANDLE_AT,
    UINT,
    UINT_AT,
    Exports,
    at,
    write_array,
    write_handle,
    write_handles,
)
from services.gpuagent.devices.fake_nvml.core import mig_rules
from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuInstance
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu
from services.gpuagent.devices.fake_nvml.fake_node import FakeNode
from services.gpuagent.devices.fake_nvml.rights import MIG_CHANGE, MIG_READ, Right
from services.kit.mig import SliceKind
from services.kit.units import BYTES_PER_MIB

exports = Exports()
_export = exports.function
_Instance = tuple[FakeGpu, GpuInstance]
_PLACEMENT = pynvml.c_nvmlGpuInstancePlacement_t


# ---- mode --------------------------------------------------------------------------------------


@_export("nvmlDeviceGetMigMode", GPU, UINT_AT, UINT_AT)
def _mig_mode(_: FakeNode, gpu: FakeGpu, current: c_uint, pending: c_uint) -> None:
    if not gpu.table.mig_capable:
        raise Fault(Code.NOT_SUPPORTED)
    current.value, pending.value = gpu.state.mig_enabled, gpu.state.mig_pending


@_export("nvmlDeviceSetMigMode", GPU, UINT, UINT_AT, needs=Right.ADMIN)
def _set_mig_mode(_: FakeNode, gpu: FakeGpu, mode: int, status: c_uint) -> None:
    if mode not in (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_ENABLE):
        raise Fault(Code.INVALID_ARGUMENT)
    status.value = gpu.set_mig_mode(enabled=mode == pynvml.NVML_DEVICE_MIG_ENABLE)


# ---- GPU instance profiles ---------------------------------------------------------------------


def _kind_by_enum(gpu: FakeGpu, profile: int) -> SliceKind:
    if profile >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
        raise Fault(Code.INVALID_ARGUMENT)
    for kind in gpu.table.geometry.kinds:
        if gpu.table.profile_enums.get(kind.name) == profile:
            return kind
    raise Fault(Code.NOT_SUPPORTED)


def _kind_by_id(gpu: FakeGpu, profile_id: int) -> SliceKind:
    if not gpu.table.mig_capable:
        raise Fault(Code.NOT_SUPPORTED)
    return mig_rules.kind_by_id(gpu.table, profile_id)


def _fill_profile(kind: SliceKind, info: Any) -> None:
    """Write a slice kind. Engines other than SMs are not modelled: 0 of each."""
    info.id = kind.gpu_instance_profile_id
    info.isP2pSupported = 0
    info.sliceCount = kind.compute_slices
    info.instanceCount = kind.max_count
    info.multiprocessorCount = kind.sm_count
    info.memorySizeMB = kind.memory_bytes // BYTES_PER_MIB


@_export(
    "nvmlDeviceGetGpuInstanceProfileInfo", GPU, UINT, at(pynvml.c_nvmlGpuInstanceProfileInfo_t)
)
def _profile_info(_: FakeNode, gpu: FakeGpu, profile: int, info: Any) -> None:
    _fill_profile(_kind_by_enum(gpu, profile), info)


@_export(
    "nvmlDeviceGetGpuInstanceProfileInfoV", GPU, UINT, at(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t)
)
def _profile_info_v2(_: FakeNode, gpu: FakeGpu, profile: int, info: Any) -> None:
    if info.version != pynvml.nvmlGpuInstanceProfileInfo_v2:
        raise Fault(Code.ARGUMENT_VERSION_MISMATCH)
    kind = _kind_by_enum(gpu, profile)
    _fill_profile(kind, info)
    info.name = f"MIG {kind.name}".encode()


@_export(
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2", GPU, UINT, ADDRESS, UINT_AT, needs=MIG_READ
)
def _possible_placements(
    _: FakeNode, gpu: FakeGpu, profile_id: int, array: int | None, number: c_uint
) -> None:
    kind = _kind_by_id(gpu, profile_id)  # answers with MIG disabled, too
    if array:
        size = kind.memory_slices
        write_array(array, _PLACEMENT, [_PLACEMENT(start, size) for start in kind.starts])
    number.value = len(kind.starts)


@_export("nvmlDeviceGetGpuInstanceRemainingCapacity", GPU, UINT, UINT_AT, needs=MIG_READ)
def _remaining_capacity(_: FakeNode, gpu: FakeGpu, profile_id: int, number: c_uint) -> None:
    gpu.need_mig()
    kind = _kind_by_id(gpu, profile_id)
    number.value = mig_rules.remaining_capacity(gpu.table, gpu.state, kind)


# ---- GPU instances -----------------------------------------------------------------------------


@_export("nvmlDeviceCreateGpuInstance", GPU, UINT, HANDLE_AT, needs=MIG_CHANGE)
def _create_gpu_instance(node: FakeNode, gpu: FakeGpu, profile_id: int, handle: c_void_p) -> None:
    gpu.need_mig()
    instance = gpu.create_instance(_kind_by_id(gpu, profile_id), None)
    handle.value = node.handle("gpu instance", instance.serial)


@_export(
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    GPU,
    UINT,
    at(_PLACEMENT),
    HANDLE_AT,
    needs=MIG_CHANGE,
)
def _create_gpu_instance_with_placement(
    node: FakeNode, gpu: FakeGpu, profile_id: int, placement: Any, handle: c_void_p
) -> None:
    gpu.need_mig()
    kind = _kind_by_id(gpu, profile_id)
    if placement.size != kind.memory_slices:
        raise Fault(Code.INVALID_ARGUMENT)
    instance = gpu.create_instance(kind, placement.start)
    handle.value = node.handle("gpu instance", instance.serial)


@_export("nvmlDeviceGetGpuInstances", GPU, UINT, ADDRESS, UINT_AT, needs=MIG_READ)
def _gpu_instances(
    node: FakeNode, gpu: FakeGpu, profile_id: int, array: int | None, number: c_uint
) -> None:
    gpu.need_mig()
    kind = _kind_by_id(gpu, profile_id)
    serials = [i.serial for i in gpu.state.instances if i.placement.profile == kind.name]
    write_handles(array, [node.handle("gpu instance", serial) for serial in serials], number)


@_export("nvmlDeviceGetGpuInstanceById", GPU, UINT, HANDLE_AT, needs=MIG_READ)
def _gpu_instance_by_id(node: FakeNode, gpu: FakeGpu, number: int, handle: c_void_p) -> None:
    gpu.need_mig()
    for instance in gpu.state.instances:
        if instance.id == number:
            handle.value = node.handle("gpu instance", instance.serial)
            return
    raise Fault(Code.NOT_FOUND)


@_export("nvmlGpuInstanceGetInfo", GPU_INSTANCE, at(pynvml.c_nvmlGpuInstanceInfo_t))
def _gpu_instance_info(node: FakeNode, found: _Instance, info: Any) -> None:
    gpu, instance = found
    kind = gpu.kind(instance)
    write_handle(info, "device", node.handle("device", gpu.uuid))
    info.id = instance.id
    info.profileId = kind.gpu_instance_profile_id
    info.placement = _PLACEMENT(instance.placement.start, kind.memory_slices)


@_export("nvmlGpuInstanceDestroy", GPU_INSTANCE, needs=MIG_CHANGE)
def _destroy_gpu_instance(_: FakeNode, found: _Instance) -> None:
    gpu, instance = found
    gpu.destroy_instance(instance)

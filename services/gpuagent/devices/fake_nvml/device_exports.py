"""nvmlSystem* and nvmlDevice* functions that have nothing to do with MIG."""

from __future__ import annotations

from ctypes import c_uint, c_void_p
from typing import Any

import pynvml

from services.gpuagent.devices.fake_nvml.c_abi import (
    ADDRESS,
    DEVICE,
    GPU,
    HANDLE_AT,
    STRING,
    UINT,
    UINT_AT,
    Exports,
    at,
    write_string,
)
from services.gpuagent.devices.fake_nvml.core import mig_rules
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu, MigDevice
from services.gpuagent.devices.fake_nvml.fake_node import FakeNode
from services.gpuagent.devices.fake_nvml.rights import Right

DRIVER_VERSION = "580.95.05"
CUDA_VERSION = 13_000
"""As the driver tells it: 1000 x major + 10 x minor."""
NVML_VERSION = f"{CUDA_VERSION // 1000}.{DRIVER_VERSION}"

exports = Exports()
_export = exports.function
_COMPUTE_MODES = (
    pynvml.NVML_COMPUTEMODE_DEFAULT,
    pynvml.NVML_COMPUTEMODE_PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
)


# ---- library and system ------------------------------------------------------------------------


@_export("nvmlInit_v2", before_init=True)
def _init(node: FakeNode) -> None:
    node.init()


@_export("nvmlInitWithFlags", UINT, before_init=True)
def _init_with_flags(node: FakeNode, _flags: int) -> None:
    node.init()


@_export("nvmlShutdown")
def _shutdown(node: FakeNode) -> None:
    node.shutdown()


@_export("nvmlSystemGetDriverVersion", ADDRESS, UINT)
def _driver_version(_: FakeNode, buffer: int, size: int) -> None:
    write_string(buffer, size, DRIVER_VERSION)


@_export("nvmlSystemGetCudaDriverVersion_v2", UINT_AT)
def _cuda_version(_: FakeNode, version: c_uint) -> None:
    version.value = CUDA_VERSION


@_export("nvmlSystemGetNVMLVersion", ADDRESS, UINT)
def _nvml_version(_: FakeNode, buffer: int, size: int) -> None:
    write_string(buffer, size, NVML_VERSION)


# ---- which device ------------------------------------------------------------------------------


@_export("nvmlDeviceGetCount_v2", UINT_AT)
def _device_count(node: FakeNode, number: c_uint) -> None:
    number.value = len(node.gpus)


@_export("nvmlDeviceGetHandleByIndex_v2", UINT, HANDLE_AT)
def _handle_by_index(node: FakeNode, index: int, handle: c_void_p) -> None:
    if index >= len(node.gpus):
        raise Fault(Code.INVALID_ARGUMENT)
    handle.value = node.handle("device", node.present(node.gpus[index]).uuid)


@_export("nvmlDeviceGetHandleByUUID", STRING, HANDLE_AT)
def _handle_by_uuid(node: FakeNode, uuid: bytes | None, handle: c_void_p) -> None:
    if not uuid:
        raise Fault(Code.INVALID_ARGUMENT)
    node.device_by_uuid(uuid.decode())
    for gpu in node.gpus:  # nvml.h: "if any GPU has fallen off the bus"
        node.present(gpu)
    handle.value = node.handle("device", uuid.decode())


@_export("nvmlDeviceGetName", DEVICE, ADDRESS, UINT)
def _name(_: FakeNode, device: FakeGpu | MigDevice, buffer: int, size: int) -> None:
    if isinstance(device, MigDevice):
        product = device.gpu.table.product_name
        profile = mig_rules.compute_profile(device.kind, device.compute.profile_id)
        write_string(buffer, size, f"{product} MIG {profile.name}")
    else:
        write_string(buffer, size, device.table.product_name)


@_export("nvmlDeviceGetUUID", DEVICE, ADDRESS, UINT)
def _uuid(_: FakeNode, device: FakeGpu | MigDevice, buffer: int, size: int) -> None:
    found = device.compute.uuid if isinstance(device, MigDevice) else device.uuid
    write_string(buffer, size, found)


@_export("nvmlDeviceGetIndex", GPU, UINT_AT)
def _index(_: FakeNode, gpu: FakeGpu, number: c_uint) -> None:
    number.value = gpu.index


@_export("nvmlDeviceGetMinorNumber", GPU, UINT_AT)
def _minor_number(_: FakeNode, gpu: FakeGpu, number: c_uint) -> None:
    number.value = gpu.index


@_export("nvmlDeviceGetCudaComputeCapability", GPU, at(c_uint), at(c_uint))
def _compute_capability(_: FakeNode, gpu: FakeGpu, major: c_uint, minor: c_uint) -> None:
    major.value, minor.value = gpu.table.compute_capability


@_export("nvmlDeviceGetNumGpuCores", GPU, UINT_AT)
def _cores(_: FakeNode, gpu: FakeGpu, number: c_uint) -> None:
    number.value = gpu.table.sm_count * gpu.table.cores_per_sm


# ---- memory ------------------------------------------------------------------------------------


def _fill_memory(device: FakeGpu | MigDevice, info: Any) -> None:
    """Write the memory; nothing of it is ever in use."""
    if isinstance(device, MigDevice):
        info.total = device.kind.memory_bytes
    else:
        info.total = device.table.memory_bytes
    info.free, info.used = info.total, 0


@_export("nvmlDeviceGetMemoryInfo", DEVICE, at(pynvml.c_nvmlMemory_t))
def _memory_info(_: FakeNode, device: FakeGpu | MigDevice, info: Any) -> None:
    _fill_memory(device, info)


@_export("nvmlDeviceGetMemoryInfo_v2", DEVICE, at(pynvml.c_nvmlMemory_v2_t))
def _memory_info_v2(_: FakeNode, device: FakeGpu | MigDevice, info: Any) -> None:
    if info.version != pynvml.nvmlMemory_v2:
        raise Fault(Code.ARGUMENT_VERSION_MISMATCH)
    info.reserved = 0
    _fill_memory(device, info)


@_export("nvmlDeviceGetUtilizationRates", GPU, at(pynvml.c_nvmlUtilization_t))
def _utilization(_: FakeNode, gpu: FakeGpu, _rates: Any) -> None:
    del gpu  # not known of the model, and "not supported on MIG-enabled GPUs" (nvml.h)
    raise Fault(Code.NOT_SUPPORTED)


# ---- who may use it ----------------------------------------------------------------------------


def _user_of(device: FakeGpu | MigDevice) -> tuple[FakeGpu, str]:
    """Return the GPU and the UUID whose compute mode is meant.

    nvml.h: "If MIG is enabled on a GPU, device must be MIG device handle."
    """
    if isinstance(device, MigDevice):
        return device.gpu, device.compute.uuid
    if device.state.mig_enabled:
        raise Fault(Code.NOT_SUPPORTED)
    return device, device.uuid


@_export("nvmlDeviceGetComputeMode", DEVICE, UINT_AT)
def _compute_mode(_: FakeNode, device: FakeGpu | MigDevice, mode: c_uint) -> None:
    gpu, uuid = _user_of(device)
    mode.value = gpu.compute_mode(uuid)


@_export("nvmlDeviceSetComputeMode", DEVICE, UINT, needs=Right.ADMIN)
def _set_compute_mode(_: FakeNode, device: FakeGpu | MigDevice, mode: int) -> None:
    gpu, uuid = _user_of(device)
    if mode not in _COMPUTE_MODES:
        raise Fault(Code.INVALID_ARGUMENT)
    gpu.set_compute_mode(uuid, mode)

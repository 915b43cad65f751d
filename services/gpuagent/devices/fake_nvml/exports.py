"""NVML's C functions by their C names: parameters, behaviour, and required rights."""

from typing import Any

import pynvml

from cinquefoil.gpuagent.v1.records import SliceProfile
from services.gpuagent.devices.fake_nvml.c_abi import (
    CLOCKS_OUT,
    COMPUTE_INSTANCE,
    DEVICE,
    EXPORTS,
    GPU,
    GPU_INSTANCE,
    HANDLE_OUT,
    HANDLES_OUT,
    MIG_DEVICE,
    NODE,
    STRING,
    TEXT_OUT,
    UINT,
    UINT_OUT,
    ULONGLONG_OUT,
    array,
    pointer_to,
    struct,
)
from services.gpuagent.devices.fake_nvml.c_abi import export as _export
from services.gpuagent.devices.fake_nvml.core import mig_rules
from services.gpuagent.devices.fake_nvml.core.gpu_state import GpuInstance
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu, MigDevice
from services.gpuagent.devices.fake_nvml.fake_node import (
    MIG_CHANGE,
    MIG_READ,
    FakeNode,
    Handle,
    Right,
)
from services.kit.units import BYTES_PER_MIB

__all__ = ["EXPORTS"]

DRIVER_VERSION = "580.95.05"
CUDA_VERSION = 13_000
"""As the driver reports it: 1000 x major + 10 x minor."""

_Device = FakeGpu | MigDevice
_Instance = tuple[FakeGpu, GpuInstance]
_PLACEMENT = pynvml.c_nvmlGpuInstancePlacement_t


# ---- library and system ------------------------------------------------------------------------

_export("nvmlInitWithFlags", NODE, UINT, before_init=True)(lambda node, _flags: node.init())
_export("nvmlShutdown", NODE)(FakeNode.shutdown)
_export("nvmlSystemGetDriverVersion", TEXT_OUT)(lambda: DRIVER_VERSION)
_export("nvmlSystemGetCudaDriverVersion_v2", UINT_OUT)(lambda: CUDA_VERSION)


# ---- which device ------------------------------------------------------------------------------

_export("nvmlDeviceGetCount_v2", NODE, UINT_OUT)(lambda node: len(node.gpus))
_export("nvmlDeviceGetIndex", GPU, UINT_OUT)(lambda gpu: gpu.index)
_export("nvmlDeviceGetCudaComputeCapability", GPU, UINT_OUT, UINT_OUT)(
    lambda gpu: gpu.table.compute_capability
)
_export("nvmlDeviceGetNumGpuCores", GPU, UINT_OUT)(
    lambda gpu: gpu.table.sm_count * gpu.table.cores_per_sm
)


@_export("nvmlDeviceGetHandleByIndex_v2", NODE, UINT, HANDLE_OUT)
def _handle_by_index(node: FakeNode, index: int) -> Handle:
    if index >= len(node.gpus):
        raise Fault(Code.INVALID_ARGUMENT)
    return Handle("device", node.present(node.gpus[index]).uuid)


@_export("nvmlDeviceGetHandleByUUID", NODE, STRING, HANDLE_OUT)
def _handle_by_uuid(node: FakeNode, uuid: bytes | None) -> Handle:
    if not uuid:
        raise Fault(Code.INVALID_ARGUMENT)
    node.device_by_uuid(uuid.decode())
    for gpu in node.gpus:  # nvml.h: "if any GPU has fallen off the bus"
        node.present(gpu)
    return Handle("device", uuid.decode())


@_export("nvmlDeviceGetName", DEVICE, TEXT_OUT)
def _name(device: _Device) -> str:
    if isinstance(device, FakeGpu):
        return device.table.product_name
    profile = mig_rules.compute_profile(device.kind, device.compute.profile_id)
    return f"{device.gpu.table.product_name} MIG {profile.name}"


@_export("nvmlDeviceGetUUID", DEVICE, TEXT_OUT)
def _uuid(device: _Device) -> str:
    return device.uuid if isinstance(device, FakeGpu) else device.compute.uuid


@_export("nvmlDeviceGetP2PStatus", GPU, GPU, UINT, UINT_OUT)
def _p2p_status(one: FakeGpu, other: FakeGpu, capability: int) -> int:
    """Return whether two GPUs reach one another: those of one module by NVLink, no others."""
    if one is other or capability >= pynvml.NVML_P2P_CAPS_INDEX_UNKNOWN:
        raise Fault(Code.INVALID_ARGUMENT)
    joined = one.table.nvlink and one.table.name == other.table.name
    ok = joined and capability == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    return int(pynvml.NVML_P2P_STATUS_OK if ok else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)


# ---- memory ------------------------------------------------------------------------------------


@_export("nvmlDeviceGetMemoryInfo", DEVICE, struct(pynvml.c_nvmlMemory_t))
def _memory_info(device: _Device) -> dict[str, int]:
    """Return the memory; nothing of it is ever in use."""
    described = device.table if isinstance(device, FakeGpu) else device.kind
    total = described.memory_bytes
    return {"total": total, "free": total, "used": 0}


# ---- power and energy --------------------------------------------------------------------------


def _mw(power_w: float) -> int:
    return round(power_w * 1000)


@_export("nvmlDeviceGetPowerUsage", GPU, UINT_OUT)
def _power_usage(gpu: FakeGpu) -> int:
    averaged = gpu.table.averages_power
    return _mw(gpu.sensors.average_power_w(gpu.state) if averaged else gpu.sensors.power_w())


@_export("nvmlDeviceGetTotalEnergyConsumption", GPU, ULONGLONG_OUT)
def _total_energy_mj(gpu: FakeGpu) -> int:
    if not gpu.table.energy_counter:
        raise Fault(Code.NOT_SUPPORTED)
    return int(gpu.sensors.counter_j(gpu.state) * 1000)


_export("nvmlDeviceGetPowerManagementDefaultLimit", GPU, UINT_OUT)(
    lambda gpu: _mw(gpu.table.max_power_w)
)
for _symbol in ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"):
    _export(_symbol, GPU, UINT_OUT)(lambda gpu: gpu.power_limit_mw)
_export("nvmlDeviceGetPowerManagementLimitConstraints", GPU, UINT_OUT, UINT_OUT)(
    lambda gpu: gpu.power_limits_mw
)
_export("nvmlDeviceSetPowerManagementLimit", GPU, UINT, needs=Right.ADMIN)(FakeGpu.limit_power)


# ---- clocks ------------------------------------------------------------------------------------


def _clock_mhz(gpu: FakeGpu, domain: int, sm_clock_mhz: int) -> int:
    if domain in (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM):
        return sm_clock_mhz
    if domain == pynvml.NVML_CLOCK_MEM:
        return gpu.table.memory_clock_mhz
    known = domain < pynvml.NVML_CLOCK_COUNT
    raise Fault(Code.NOT_SUPPORTED if known else Code.INVALID_ARGUMENT)


@_export("nvmlDeviceGetClockInfo", GPU, UINT, UINT_OUT)
def _clock_info(gpu: FakeGpu, domain: int) -> int:
    return _clock_mhz(gpu, domain, gpu.clock_mhz)


_export("nvmlDeviceGetMaxClockInfo", GPU, UINT, UINT_OUT)(
    lambda gpu, domain: _clock_mhz(gpu, domain, gpu.table.max_clock_mhz)
)
_export("nvmlDeviceGetSupportedMemoryClocks", GPU, CLOCKS_OUT)(
    lambda gpu: (gpu.table.memory_clock_mhz,)
)
_export("nvmlDeviceSetGpuLockedClocks", GPU, UINT, UINT, needs=Right.ADMIN)(FakeGpu.lock_clocks)
_export("nvmlDeviceResetGpuLockedClocks", GPU, needs=Right.ADMIN)(FakeGpu.reset_clocks)


@_export("nvmlDeviceGetSupportedGraphicsClocks", GPU, UINT, CLOCKS_OUT)
def _graphics_clocks(gpu: FakeGpu, memory_mhz: int) -> tuple[int, ...]:
    if memory_mhz != gpu.table.memory_clock_mhz:
        raise Fault(Code.NOT_FOUND)
    return gpu.table.clocks_mhz


# ---- MIG mode ----------------------------------------------------------------------------------


@_export("nvmlDeviceGetMigMode", GPU, UINT_OUT, UINT_OUT)
def _mig_mode(gpu: FakeGpu) -> tuple[bool, bool]:
    if not gpu.table.mig_capable:
        raise Fault(Code.NOT_SUPPORTED)
    return gpu.state.mig_enabled, gpu.state.mig_pending


@_export("nvmlDeviceSetMigMode", GPU, UINT, UINT_OUT, needs=Right.ADMIN)
def _set_mig_mode(gpu: FakeGpu, mode: int) -> Code:
    if mode not in (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_ENABLE):
        raise Fault(Code.INVALID_ARGUMENT)
    return gpu.set_mig_mode(enabled=mode == pynvml.NVML_DEVICE_MIG_ENABLE)


# ---- GPU instance profiles ---------------------------------------------------------------------


def _kind_by_enum(gpu: FakeGpu, profile: int) -> SliceProfile:
    if profile >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
        raise Fault(Code.INVALID_ARGUMENT)
    for kind in gpu.table.geometry.kinds:
        if gpu.table.profile_enums.get(kind.name) == profile:
            return kind
    raise Fault(Code.NOT_SUPPORTED)


@_export(
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    GPU,
    UINT,
    struct(pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, pynvml.nvmlGpuInstanceProfileInfo_v2),
)
def _profile_info(gpu: FakeGpu, profile: int) -> dict[str, Any]:
    """Return the fields of a slice kind. Engines other than SMs are not modelled: 0 of each."""
    kind = _kind_by_enum(gpu, profile)
    return {
        "id": kind.gpu_instance_profile_id,
        "isP2pSupported": 0,
        "sliceCount": kind.compute_slices,
        "instanceCount": kind.max_count,
        "multiprocessorCount": kind.sm_count,
        "memorySizeMB": kind.memory_bytes // BYTES_PER_MIB,
        "name": f"MIG {kind.name}".encode(),
    }


@_export(
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    GPU,
    UINT,
    array(_PLACEMENT, optional=True),
    needs=MIG_READ,
)
def _possible_placements(gpu: FakeGpu, profile_id: int) -> list[Any]:
    kind = mig_rules.kind_by_id(gpu.table, profile_id)  # answers with MIG disabled, too
    return [_PLACEMENT(start, kind.memory_slices) for start in kind.starts]


@_export("nvmlDeviceGetGpuInstanceRemainingCapacity", GPU, UINT, UINT_OUT, needs=MIG_READ)
def _remaining_capacity(gpu: FakeGpu, profile_id: int) -> int:
    gpu.need_mig()
    kind = mig_rules.kind_by_id(gpu.table, profile_id)
    return mig_rules.remaining_capacity(gpu.table, gpu.state, kind)


# ---- GPU instances -----------------------------------------------------------------------------


@_export(
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    GPU,
    UINT,
    pointer_to(_PLACEMENT),
    HANDLE_OUT,
    needs=MIG_CHANGE,
)
def _create_gpu_instance_with_placement(gpu: FakeGpu, profile_id: int, placement: Any) -> Handle:
    gpu.need_mig()
    kind = mig_rules.kind_by_id(gpu.table, profile_id)
    if placement.size != kind.memory_slices:
        raise Fault(Code.INVALID_ARGUMENT)
    return Handle("gpu instance", gpu.create_instance(kind, placement.start).serial)


@_export("nvmlDeviceGetGpuInstances", GPU, UINT, HANDLES_OUT, needs=MIG_READ)
def _gpu_instances(gpu: FakeGpu, profile_id: int) -> list[Handle]:
    gpu.need_mig()
    name = mig_rules.kind_by_id(gpu.table, profile_id).name
    found = (each for each in gpu.state.instances if each.placement.profile == name)
    return [Handle("gpu instance", instance.serial) for instance in found]


@_export("nvmlGpuInstanceGetInfo", GPU_INSTANCE, struct(pynvml.c_nvmlGpuInstanceInfo_t))
def _gpu_instance_info(found: _Instance) -> dict[str, Any]:
    gpu, instance = found
    kind = gpu.kind(instance)
    return {
        "device": Handle("device", gpu.uuid),
        "id": instance.id,
        "profileId": kind.gpu_instance_profile_id,
        "placement": _PLACEMENT(instance.placement.start, kind.memory_slices),
    }


_export("nvmlGpuInstanceDestroy", GPU_INSTANCE, needs=MIG_CHANGE)(
    lambda found: found[0].destroy_instance(found[1])
)


# ---- compute instances -------------------------------------------------------------------------


@_export(
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    GPU_INSTANCE,
    UINT,
    UINT,
    struct(pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, pynvml.nvmlComputeInstanceProfileInfo_v2),
)
def _compute_profile_info(found: _Instance, profile: int, engines: int) -> dict[str, Any]:
    if (
        profile >= pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        or engines >= pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
    ):
        raise Fault(Code.INVALID_ARGUMENT)
    if profile >= len(mig_rules.COMPUTE_SLICES):
        raise Fault(Code.NOT_SUPPORTED)
    gpu, instance = found
    compute = mig_rules.compute_profile(gpu.kind(instance), profile)
    return {
        "id": compute.id,
        "sliceCount": compute.slices,
        "instanceCount": compute.max_count,
        "multiprocessorCount": compute.sm_count,
        "name": f"MIG {compute.name}".encode(),
    }


@_export("nvmlGpuInstanceCreateComputeInstance", GPU_INSTANCE, UINT, HANDLE_OUT, needs=MIG_CHANGE)
def _create_compute_instance(found: _Instance, profile_id: int) -> Handle:
    gpu, instance = found
    return Handle("compute instance", gpu.create_compute(instance, profile_id).uuid)


@_export("nvmlGpuInstanceGetComputeInstances", GPU_INSTANCE, UINT, HANDLES_OUT, needs=MIG_READ)
def _compute_instances(found: _Instance, profile_id: int) -> list[Handle]:
    gpu, instance = found
    mig_rules.compute_profile(gpu.kind(instance), profile_id)
    uuids = [entry.uuid for entry in instance.compute if entry.profile_id == profile_id]
    return [Handle("compute instance", uuid) for uuid in uuids]


_export("nvmlComputeInstanceDestroy", COMPUTE_INSTANCE, needs=MIG_CHANGE)(
    lambda device: device.gpu.destroy_compute(device)
)


# ---- MIG devices -------------------------------------------------------------------------------

_export("nvmlDeviceGetGpuInstanceId", MIG_DEVICE, UINT_OUT)(lambda device: device.instance.id)


@_export("nvmlDeviceGetMaxMigDeviceCount", GPU, UINT_OUT)
def _max_mig_devices(gpu: FakeGpu) -> int:
    enabled = gpu.table.mig_capable and gpu.state.mig_enabled
    return max(kind.max_count for kind in gpu.table.geometry.kinds) if enabled else 0


@_export("nvmlDeviceGetMigDeviceHandleByIndex", GPU, UINT, HANDLE_OUT)
def _mig_device_by_index(gpu: FakeGpu, index: int) -> Handle:
    gpu.need_mig()
    devices = gpu.mig_devices()
    if index >= len(devices):
        raise Fault(Code.NOT_FOUND)
    return Handle("device", devices[index].compute.uuid)


@_export("nvmlDeviceGetAttributes_v2", MIG_DEVICE, struct(pynvml.c_nvmlDeviceAttributes))
def _attributes(device: MigDevice) -> dict[str, int]:
    profile = mig_rules.compute_profile(device.kind, device.compute.profile_id)
    return {
        "multiprocessorCount": profile.sm_count,
        "gpuInstanceSliceCount": device.kind.compute_slices,
        "computeInstanceSliceCount": device.compute.size,
        "memorySizeMB": device.kind.memory_bytes // BYTES_PER_MIB,
    }

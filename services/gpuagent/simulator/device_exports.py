"""nvmlSystem* and nvmlDevice* functions that have nothing to do with MIG."""

from __future__ import annotations

from ctypes import c_uint, c_ulonglong, c_void_p
from typing import Any

import pynvml

from services.gpuagent.simulator.abi import (
    ADDRESS,
    DEVICE,
    GPU,
    HANDLE_AT,
    INT,
    STRING,
    UINT,
    UINT_AT,
    Exports,
    at,
    write_array,
    write_string,
)
from services.gpuagent.simulator.faults import Code, Fault
from services.gpuagent.simulator.gpu import MigDevice, SimulatedGpu
from services.gpuagent.simulator.machine import Machine

DRIVER_VERSION = "580.95.05"
NVML_VERSION = f"13.{DRIVER_VERSION}"

exports = Exports()
_export = exports.function


# ---- library and system ------------------------------------------------------------------------


@_export("nvmlInit_v2", before_init=True)
def _init(machine: Machine) -> None:
    machine.init()


@_export("nvmlInitWithFlags", UINT, before_init=True)
def _init_with_flags(machine: Machine, _flags: int) -> None:
    machine.init()


@_export("nvmlShutdown")
def _shutdown(machine: Machine) -> None:
    machine.shutdown()


@_export("nvmlSystemGetDriverVersion", ADDRESS, UINT)
def _driver_version(_: Machine, buffer: int, size: int) -> None:
    write_string(buffer, size, DRIVER_VERSION)


@_export("nvmlSystemGetNVMLVersion", ADDRESS, UINT)
def _nvml_version(_: Machine, buffer: int, size: int) -> None:
    write_string(buffer, size, NVML_VERSION)


# ---- which device ------------------------------------------------------------------------------


@_export("nvmlDeviceGetCount_v2", UINT_AT)
def _device_count(machine: Machine, number: c_uint) -> None:
    number.value = len(machine.gpus)


@_export("nvmlDeviceGetHandleByIndex_v2", UINT, HANDLE_AT)
def _handle_by_index(machine: Machine, index: int, handle: c_void_p) -> None:
    if index >= len(machine.gpus):
        raise Fault(Code.INVALID_ARGUMENT)
    handle.value = machine.handle("device", machine.gpus[index].uuid)


@_export("nvmlDeviceGetHandleByUUID", STRING, HANDLE_AT)
def _handle_by_uuid(machine: Machine, uuid: bytes | None, handle: c_void_p) -> None:
    if not uuid:
        raise Fault(Code.INVALID_ARGUMENT)
    machine.device_by_uuid(uuid.decode())
    handle.value = machine.handle("device", uuid.decode())


@_export("nvmlDeviceGetName", DEVICE, ADDRESS, UINT)
def _name(_: Machine, device: SimulatedGpu | MigDevice, buffer: int, size: int) -> None:
    if isinstance(device, MigDevice):
        product = device.gpu.table.product_name
        write_string(buffer, size, f"{product} MIG {device.kind.name}")
    else:
        write_string(buffer, size, device.table.product_name)


@_export("nvmlDeviceGetUUID", DEVICE, ADDRESS, UINT)
def _uuid(_: Machine, device: SimulatedGpu | MigDevice, buffer: int, size: int) -> None:
    found = device.compute.uuid if isinstance(device, MigDevice) else device.uuid
    write_string(buffer, size, found)


@_export("nvmlDeviceGetIndex", GPU, UINT_AT)
def _index(_: Machine, gpu: SimulatedGpu, number: c_uint) -> None:
    number.value = gpu.index


@_export("nvmlDeviceGetMinorNumber", GPU, UINT_AT)
def _minor_number(_: Machine, gpu: SimulatedGpu, number: c_uint) -> None:
    number.value = gpu.index


@_export("nvmlDeviceGetCudaComputeCapability", GPU, at(c_uint), at(c_uint))
def _compute_capability(_: Machine, gpu: SimulatedGpu, major: c_uint, minor: c_uint) -> None:
    major.value, minor.value = gpu.table.compute_capability


@_export("nvmlDeviceGetNumGpuCores", GPU, UINT_AT)
def _cores(_: Machine, gpu: SimulatedGpu, number: c_uint) -> None:
    number.value = gpu.table.sm_count * gpu.table.cores_per_sm


# ---- memory ------------------------------------------------------------------------------------


def _fill_memory(device: SimulatedGpu | MigDevice, info: Any) -> None:
    """Write the memory; nothing of it is ever in use."""
    if isinstance(device, MigDevice):
        info.total = device.kind.memory_bytes
    else:
        info.total = device.table.memory_bytes
    info.free, info.used = info.total, 0


@_export("nvmlDeviceGetMemoryInfo", DEVICE, at(pynvml.c_nvmlMemory_t))
def _memory_info(_: Machine, device: SimulatedGpu | MigDevice, info: Any) -> None:
    _fill_memory(device, info)


@_export("nvmlDeviceGetMemoryInfo_v2", DEVICE, at(pynvml.c_nvmlMemory_v2_t))
def _memory_info_v2(_: Machine, device: SimulatedGpu | MigDevice, info: Any) -> None:
    if info.version != pynvml.nvmlMemory_v2:
        raise Fault(Code.ARGUMENT_VERSION_MISMATCH)
    info.reserved = 0
    _fill_memory(device, info)


@_export("nvmlDeviceGetUtilizationRates", GPU, at(pynvml.c_nvmlUtilization_t))
def _utilization(_: Machine, gpu: SimulatedGpu, _rates: Any) -> None:
    del gpu  # not known of the model, and "not supported on MIG-enabled GPUs" (nvml.h)
    raise Fault(Code.NOT_SUPPORTED)


# ---- power and energy --------------------------------------------------------------------------


def _mw(power_w: float) -> int:
    return round(power_w * 1000)


@_export("nvmlDeviceGetPowerUsage", GPU, UINT_AT)
def _power_usage(_: Machine, gpu: SimulatedGpu, power_mw: c_uint) -> None:
    power_mw.value = _mw(gpu.power_w)


@_export("nvmlDeviceGetTotalEnergyConsumption", GPU, at(c_ulonglong))
def _total_energy(_: Machine, gpu: SimulatedGpu, energy_mj: c_ulonglong) -> None:
    if not gpu.table.energy_counter:
        raise Fault(Code.NOT_SUPPORTED)
    energy_mj.value = int(gpu.energy_j() * 1000)


@_export("nvmlDeviceGetEnforcedPowerLimit", GPU, UINT_AT)
@_export("nvmlDeviceGetPowerManagementLimit", GPU, UINT_AT)
def _power_limit(_: Machine, gpu: SimulatedGpu, limit_mw: c_uint) -> None:
    limit_mw.value = _mw(gpu.state.power_limit_w)


@_export("nvmlDeviceGetPowerManagementDefaultLimit", GPU, UINT_AT)
def _default_power_limit(_: Machine, gpu: SimulatedGpu, limit_mw: c_uint) -> None:
    limit_mw.value = _mw(gpu.table.max_power_w)


@_export("nvmlDeviceGetPowerManagementLimitConstraints", GPU, UINT_AT, UINT_AT)
def _power_limits(_: Machine, gpu: SimulatedGpu, least_mw: c_uint, most_mw: c_uint) -> None:
    least_mw.value = _mw(gpu.table.min_power_limit_w)
    most_mw.value = _mw(gpu.table.max_power_w)


@_export("nvmlDeviceSetPowerManagementLimit", GPU, UINT, privileged=True)
def _set_power_limit(_: Machine, gpu: SimulatedGpu, limit_mw: int) -> None:
    gpu.set_power_limit_w(limit_mw / 1000)


_POWER_FIELDS = (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT)


@_export("nvmlDeviceGetFieldValues", GPU, INT, ADDRESS)
def _field_values(machine: Machine, gpu: SimulatedGpu, number: int, values: int | None) -> None:
    if not values or number < 1:
        raise Fault(Code.INVALID_ARGUMENT)
    for value in (pynvml.c_nvmlFieldValue_t * number).from_address(values):
        value.nvmlReturn = Code.SUCCESS
        try:
            _fill_field(machine, gpu, value)
        except Fault as fault:  # each field answers for itself
            value.nvmlReturn = fault.code


def _fill_field(machine: Machine, gpu: SimulatedGpu, value: Any) -> None:
    if value.fieldId in _POWER_FIELDS:
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = _mw(gpu.power_w)
    elif value.fieldId == pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        energy_mj = c_ulonglong()
        _total_energy(machine, gpu, energy_mj)
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        value.value.ullVal = energy_mj.value
    else:
        raise Fault(Code.NOT_SUPPORTED)


# ---- clocks ------------------------------------------------------------------------------------

_SM_CLOCKS = (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM)


def _clock_mhz(gpu: SimulatedGpu, domain: int, sm_clock_mhz: int) -> int:
    if domain in _SM_CLOCKS:
        return sm_clock_mhz
    if domain == pynvml.NVML_CLOCK_MEM:
        return gpu.table.memory_clock_mhz
    known = domain < pynvml.NVML_CLOCK_COUNT
    raise Fault(Code.NOT_SUPPORTED if known else Code.INVALID_ARGUMENT)


@_export("nvmlDeviceGetClockInfo", GPU, UINT, UINT_AT)
def _clock_info(_: Machine, gpu: SimulatedGpu, domain: int, clock_mhz: c_uint) -> None:
    clock_mhz.value = _clock_mhz(gpu, domain, gpu.clock_mhz)


@_export("nvmlDeviceGetMaxClockInfo", GPU, UINT, UINT_AT)
def _max_clock_info(_: Machine, gpu: SimulatedGpu, domain: int, clock_mhz: c_uint) -> None:
    clock_mhz.value = _clock_mhz(gpu, domain, gpu.table.max_clock_mhz)


def _write_clocks(clocks_mhz: tuple[int, ...], number: c_uint, array: int | None) -> None:
    """Write a list of clocks, or how long it is where the array is too short for it."""
    room = number.value if array else 0
    number.value = len(clocks_mhz)
    if room < len(clocks_mhz):
        raise Fault(Code.INSUFFICIENT_SIZE)
    write_array(array, c_uint, clocks_mhz)


@_export("nvmlDeviceGetSupportedMemoryClocks", GPU, UINT_AT, ADDRESS)
def _memory_clocks(_: Machine, gpu: SimulatedGpu, number: c_uint, array: int | None) -> None:
    _write_clocks((gpu.table.memory_clock_mhz,), number, array)


@_export("nvmlDeviceGetSupportedGraphicsClocks", GPU, UINT, UINT_AT, ADDRESS)
def _graphics_clocks(
    _: Machine, gpu: SimulatedGpu, memory_mhz: int, number: c_uint, array: int | None
) -> None:
    if memory_mhz != gpu.table.memory_clock_mhz:
        raise Fault(Code.NOT_FOUND)
    _write_clocks(gpu.table.clocks_mhz, number, array)


@_export("nvmlDeviceSetGpuLockedClocks", GPU, UINT, UINT, privileged=True)
def _lock_clocks(_: Machine, gpu: SimulatedGpu, min_mhz: int, max_mhz: int) -> None:
    gpu.lock_clocks(min_mhz, max_mhz)


@_export("nvmlDeviceResetGpuLockedClocks", GPU, privileged=True)
def _reset_clocks(_: Machine, gpu: SimulatedGpu) -> None:
    gpu.reset_clocks()

"""nvmlDevice* functions about power, energy and clocks."""

from __future__ import annotations

from ctypes import c_uint, c_ulonglong
from typing import Any

import pynvml

from services.gpuagent.devices.fake_nvml.c_abi import (
    ADDRESS,
    GPU,
    INT,
    UINT,
    UINT_AT,
    Exports,
    at,
    write_array,
)
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu
from services.gpuagent.devices.fake_nvml.fake_node import FakeNode
from services.gpuagent.devices.fake_nvml.rights import Right

exports = Exports()
_export = exports.function


# ---- power and energy --------------------------------------------------------------------------


def _mw(power_w: float) -> int:
    return round(power_w * 1000)


def _average_power_w(gpu: FakeGpu) -> float:
    if not gpu.table.averages_power:
        raise Fault(Code.NOT_SUPPORTED)
    return gpu.sensors.average_power_w(gpu.state)


@_export("nvmlDeviceGetPowerUsage", GPU, UINT_AT)
def _power_usage(_: FakeNode, gpu: FakeGpu, power_mw: c_uint) -> None:
    gpu.govern()
    averaged = gpu.table.averages_power
    power_mw.value = _mw(_average_power_w(gpu) if averaged else gpu.sensors.power_w())


@_export("nvmlDeviceGetTotalEnergyConsumption", GPU, at(c_ulonglong))
def _total_energy(_: FakeNode, gpu: FakeGpu, energy_mj: c_ulonglong) -> None:
    if not gpu.table.energy_counter:
        raise Fault(Code.NOT_SUPPORTED)
    energy_mj.value = int(gpu.sensors.counter_j(gpu.state) * 1000)


@_export("nvmlDeviceGetEnforcedPowerLimit", GPU, UINT_AT)
@_export("nvmlDeviceGetPowerManagementLimit", GPU, UINT_AT)
def _power_limit(_: FakeNode, gpu: FakeGpu, limit_mw: c_uint) -> None:
    limit_mw.value = _mw(gpu.state.power_limit_w)


@_export("nvmlDeviceGetPowerManagementDefaultLimit", GPU, UINT_AT)
def _default_power_limit(_: FakeNode, gpu: FakeGpu, limit_mw: c_uint) -> None:
    limit_mw.value = _mw(gpu.table.max_power_w)


@_export("nvmlDeviceGetPowerManagementLimitConstraints", GPU, UINT_AT, UINT_AT)
def _power_limits(_: FakeNode, gpu: FakeGpu, least_mw: c_uint, most_mw: c_uint) -> None:
    least_mw.value = _mw(gpu.table.min_power_limit_w)
    most_mw.value = _mw(gpu.table.max_power_w)


@_export("nvmlDeviceSetPowerManagementLimit", GPU, UINT, needs=Right.ADMIN)
def _set_power_limit(_: FakeNode, gpu: FakeGpu, limit_mw: int) -> None:
    gpu.set_power_limit_w(limit_mw / 1000)


@_export("nvmlDeviceGetFieldValues", GPU, INT, ADDRESS)
def _field_values(node: FakeNode, gpu: FakeGpu, number: int, values: int | None) -> None:
    if not values or number < 1:
        raise Fault(Code.INVALID_ARGUMENT)
    for value in (pynvml.c_nvmlFieldValue_t * number).from_address(values):
        value.nvmlReturn = Code.SUCCESS
        try:
            _fill_field(node, gpu, value)
        except Fault as fault:  # each field answers for itself
            value.nvmlReturn = fault.code


def _fill_field(node: FakeNode, gpu: FakeGpu, value: Any) -> None:
    if value.fieldId in (pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT):
        if value.scopeId != pynvml.NVML_POWER_SCOPE_GPU:
            raise Fault(Code.NOT_SUPPORTED)
        averaged = value.fieldId == pynvml.NVML_FI_DEV_POWER_AVERAGE
        power_w = _average_power_w(gpu) if averaged else gpu.sensors.power_w()
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = _mw(power_w)
    elif value.fieldId == pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        energy_mj = c_ulonglong()
        _total_energy(node, gpu, energy_mj)
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        value.value.ullVal = energy_mj.value
    else:
        raise Fault(Code.NOT_SUPPORTED)


# ---- clocks ------------------------------------------------------------------------------------

_SM_CLOCKS = (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM)


def _clock_mhz(gpu: FakeGpu, domain: int, sm_clock_mhz: int) -> int:
    if domain in _SM_CLOCKS:
        return sm_clock_mhz
    if domain == pynvml.NVML_CLOCK_MEM:
        return gpu.table.memory_clock_mhz
    known = domain < pynvml.NVML_CLOCK_COUNT
    raise Fault(Code.NOT_SUPPORTED if known else Code.INVALID_ARGUMENT)


@_export("nvmlDeviceGetClockInfo", GPU, UINT, UINT_AT)
def _clock_info(_: FakeNode, gpu: FakeGpu, domain: int, clock_mhz: c_uint) -> None:
    gpu.govern()
    clock_mhz.value = _clock_mhz(gpu, domain, gpu.clock_mhz)


@_export("nvmlDeviceGetMaxClockInfo", GPU, UINT, UINT_AT)
def _max_clock_info(_: FakeNode, gpu: FakeGpu, domain: int, clock_mhz: c_uint) -> None:
    clock_mhz.value = _clock_mhz(gpu, domain, gpu.table.max_clock_mhz)


def _write_clocks(clocks_mhz: tuple[int, ...], number: c_uint, array: int | None) -> None:
    """Write a list of clocks, or how long it is where the array is too short for it."""
    room = number.value if array else 0
    number.value = len(clocks_mhz)
    if room < len(clocks_mhz):
        raise Fault(Code.INSUFFICIENT_SIZE)
    write_array(array, c_uint, clocks_mhz)


@_export("nvmlDeviceGetSupportedMemoryClocks", GPU, UINT_AT, ADDRESS)
def _memory_clocks(_: FakeNode, gpu: FakeGpu, number: c_uint, array: int | None) -> None:
    _write_clocks((gpu.table.memory_clock_mhz,), number, array)


@_export("nvmlDeviceGetSupportedGraphicsClocks", GPU, UINT, UINT_AT, ADDRESS)
def _graphics_clocks(
    _: FakeNode, gpu: FakeGpu, memory_mhz: int, number: c_uint, array: int | None
) -> None:
    if memory_mhz != gpu.table.memory_clock_mhz:
        raise Fault(Code.NOT_FOUND)
    _write_clocks(gpu.table.clocks_mhz, number, array)


@_export("nvmlDeviceSetGpuLockedClocks", GPU, UINT, UINT, needs=Right.ADMIN)
def _lock_clocks(_: FakeNode, gpu: FakeGpu, min_mhz: int, max_mhz: int) -> None:
    gpu.lock_clocks(min_mhz, max_mhz)


@_export("nvmlDeviceResetGpuLockedClocks", GPU, needs=Right.ADMIN)
def _reset_clocks(_: FakeNode, gpu: FakeGpu) -> None:
    gpu.reset_clocks()


@_export("nvmlDeviceGetCurrentClocksEventReasons", GPU, at(c_ulonglong))
@_export("nvmlDeviceGetCurrentClocksThrottleReasons", GPU, at(c_ulonglong))
def _clock_reasons(_: FakeNode, gpu: FakeGpu, reasons: c_ulonglong) -> None:
    gpu.govern()
    idle = gpu.sensors.power_w() <= gpu.table.idle_power_w
    reasons.value = pynvml.nvmlClocksEventReasonGpuIdle if idle else 0
    if gpu.state.throttled_mhz:
        reasons.value |= pynvml.nvmlClocksEventReasonSwPowerCap

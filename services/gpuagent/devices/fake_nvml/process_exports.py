"""NVML's C functions about processes on GPUs, and its performance monitors (GPM)."""

import ctypes
from typing import Any

import pynvml

from services.gpuagent.core.process_activity import ProcessActivity
from services.gpuagent.devices.fake_nvml.c_abi import (
    DEVICE,
    GPM_SAMPLE,
    GPU,
    HANDLE_OUT,
    NODE,
    UINT,
    ULONGLONG,
    export,
    pointer_to,
    sized_array,
    struct,
)
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.gpuagent.devices.fake_nvml.exports import EXPORTS
from services.gpuagent.devices.fake_nvml.fake_gpu import FakeGpu, MigDevice
from services.gpuagent.devices.fake_nvml.fake_node import FakeNode, GpmSample, Handle

__all__ = ["EXPORTS"]

_Device = FakeGpu | MigDevice
_NO_INSTANCE = 0xFFFF_FFFF
_NOT_AVAILABLE = 0xFFFF_FFFF_FFFF_FFFF
"""NVML_VALUE_NOT_AVAILABLE."""

_HOPPER = (9, 0)
"""First compute capability with performance monitors that NVML reads."""


def _process_info(gpu: FakeGpu, each: ProcessActivity) -> Any:
    """Return an nvmlProcessInfo_t; without an instance both ids are all ones, as the driver's."""
    found = [entry for entry in gpu.mig_devices() if entry.compute.uuid == each.slice_uuid]
    instance = found[0].instance.id if found else _NO_INSTANCE
    compute = found[0].compute.id if found else _NO_INSTANCE
    memory = _NOT_AVAILABLE if each.memory_bytes is None else each.memory_bytes
    return pynvml.c_nvmlProcessInfo_v3_t(each.pid, memory, instance, compute)


@export(
    "nvmlDeviceGetComputeRunningProcesses_v3", DEVICE, sized_array(pynvml.c_nvmlProcessInfo_v3_t)
)
def _running_processes(device: _Device) -> list[Any]:
    """Return the processes of a GPU and all its MIG devices, or those of one MIG device."""
    if isinstance(device, FakeGpu):
        return [_process_info(device, each) for each in device.processes()]
    gpu, uuid = device.gpu, device.compute.uuid
    return [_process_info(gpu, each) for each in gpu.processes() if each.slice_uuid == uuid]


@export(
    "nvmlDeviceGetProcessUtilization",
    GPU,
    sized_array(pynvml.c_nvmlProcessUtilizationSample_t, count_first=False),
    ULONGLONG,
)
def _process_utilization(gpu: FakeGpu, last_seen_us: int) -> list[Any]:
    return [
        pynvml.c_nvmlProcessUtilizationSample_t(each.pid, each.at_us, each.sm_percent, 0, 0, 0)
        for each in gpu.utilization_since(last_seen_us)
    ]


@export("nvmlDeviceGetUtilizationRates", GPU, struct(pynvml.c_nvmlUtilization_t))
def _utilization_rates(gpu: FakeGpu) -> dict[str, int]:
    """Return the utilisation; that of the memory is not modelled."""
    return {"gpu": gpu.busy_percent(), "memory": 0}


# ---- performance monitors ----------------------------------------------------------------------


def _monitored(gpu: FakeGpu) -> bool:
    return gpu.table.compute_capability >= _HOPPER


@export(
    "nvmlGpmQueryDeviceSupport",
    GPU,
    struct(pynvml.c_nvmlGpmSupport_t, pynvml.NVML_GPM_SUPPORT_VERSION),
)
def _gpm_support(gpu: FakeGpu) -> dict[str, int]:
    return {"isSupportedDevice": int(_monitored(gpu))}


@export("nvmlGpmSampleAlloc", NODE, HANDLE_OUT)
def _gpm_alloc(node: FakeNode) -> Handle:
    return node.new_gpm_sample()


export("nvmlGpmSampleFree", NODE, GPM_SAMPLE)(lambda node, sample: node.free_gpm_sample(sample))


@export("nvmlGpmMigSampleGet", GPU, UINT, GPM_SAMPLE)
def _gpm_sample(gpu: FakeGpu, instance_id: int, sample: GpmSample) -> None:
    if not _monitored(gpu):
        raise Fault(Code.NOT_SUPPORTED)
    gpu.need_mig()
    sample.at_s, sample.busy_s = gpu.instance_busy_s(instance_id)


@export("nvmlGpmMetricsGet", NODE, pointer_to(pynvml.c_nvmlGpmMetricsGet_t))
def _gpm_metrics(node: FakeNode, query: Any) -> None:
    """Write the busy share of an instance's SMs, %; other metrics are not modelled."""
    if query.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
        raise Fault(Code.ARGUMENT_VERSION_MISMATCH)
    if query.numMetrics > pynvml.NVML_GPM_METRIC_MAX:
        raise Fault(Code.INVALID_ARGUMENT)
    before, now = (
        node.gpm_sample(ctypes.cast(each, ctypes.c_void_p).value)
        for each in (query.sample1, query.sample2)
    )
    length_s = now.at_s - before.at_s
    for metric in query.metrics[: query.numMetrics]:
        known = metric.metricId == pynvml.NVML_GPM_METRIC_SM_UTIL and length_s > 0
        metric.nvmlReturn = Code.SUCCESS if known else Code.NOT_SUPPORTED
        if known:
            metric.value = 100 * min(max(now.busy_s - before.busy_s, 0.0) / length_s, 1.0)

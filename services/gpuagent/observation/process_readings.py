"""Processes on GPUs and their activity, through NVML. Reads only; calls block.

With MIG off the driver samples the SMs' busy time and books each sample to one process, so that
shares are statistics of many samples. In MIG mode it does not;
then the activity of each GPU instance counts, by the GPU's performance monitors (Hopper and later),
else the SMs that instances with a process hold.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml

from services.gpuagent.observation.core.ledger import EnergyMethod

_NO_INSTANCE: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU.

    Attributes:
        pid: Its number, in the machine's namespace.
        instance_id: GPU instance that it runs on; None: the GPU is not cut.
        memory_bytes: Memory that it holds; 0: the driver does not say.
    """

    pid: int
    instance_id: int | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Activity:
    """Processes on a GPU and their activity since the last look.

    Attributes:
        processes: By number.
        active: Activity by process, >= 0.
        method: Origin of `active`.
        busy: Share of the last sample period in which any kernel ran, 0..1; None: unknown.
    """

    processes: tuple[GpuProcess, ...]
    active: Mapping[int, float]
    method: EnergyMethod
    busy: float | None = None


@dataclass(slots=True)
class ProcessReader:
    """Follows the processes of one GPU.

    Attributes:
        uuid: The GPU.
        sampled: Whether the driver samples the processes' activity, as the last reading found.
    """

    uuid: str
    sampled: bool = False
    _device: Any = None
    _seen_us: int = 0
    _active: dict[int, float] = field(default_factory=dict)
    _samples: dict[int, Any] = field(default_factory=dict)

    def sample(self) -> None:
        """Add the driver's newest sample to the activity; one call of NVML.

        A driver that does not answer is read again after the next reading, which reports it.
        """
        if self.sampled:
            self.sampled = False
            with suppress(pynvml.NVMLError):
                self.sampled = self._sample()

    def read(self) -> Activity:
        """Return the processes, and their activity since the last call.

        Raises:
            NVMLError: The driver does not answer.
        """
        self._device = device = pynvml.nvmlDeviceGetHandleByUUID(self.uuid.encode())
        processes = _processes(device)
        if any(each.instance_id is not None for each in processes):
            self.sampled, self._active = False, {}
            return self._by_instance(device, processes)
        self.sampled = self._sample()
        active, self._active = self._active, {}
        method: EnergyMethod = "process_utilization" if self.sampled else "none"
        return Activity(processes, active, method, _busy(device))

    def _sample(self) -> bool:
        """Add the samples since the last call; return whether the driver takes any here."""
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._device, self._seen_us)
        except pynvml.NVMLError_NotFound:
            return True
        except pynvml.NVMLError_NotSupported:
            return False
        first = not self._seen_us
        for sample in samples:
            self._seen_us = max(self._seen_us, int(sample.timeStamp))
            if not first and sample.smUtil <= 100:  # unused entries have had garbage in them
                pid = int(sample.pid)
                self._active[pid] = self._active.get(pid, 0.0) + sample.smUtil
        return True

    def _by_instance(self, device: Any, processes: tuple[GpuProcess, ...]) -> Activity:
        """Return the activity of GPU instances, shared evenly among the processes of each."""
        slices = _multiprocessors(device)
        numbers = {each.instance_id for each in processes if each.instance_id is not None}
        busy = {number: self._instance_busy(device, number) for number in numbers}
        measured = all(share is not None for share in busy.values())
        active: dict[int, float] = {}
        for each in processes:
            if each.instance_id is None:
                continue
            share = (busy[each.instance_id] or 0.0) if measured else 1.0
            beside = sum(1 for other in processes if other.instance_id == each.instance_id)
            found = share * slices.get(each.instance_id, 1) / beside
            active[each.pid] = active.get(each.pid, 0.0) + found
        return Activity(processes, active, "instance_utilization" if measured else "slices_held")

    def _instance_busy(self, device: Any, number: int) -> float | None:
        """Return the busy share of a GPU instance's SMs since the last look; None: unknown."""
        with suppress(pynvml.NVMLError, AttributeError):
            if not pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
                return None
            now = pynvml.nvmlGpmSampleAlloc()
            pynvml.nvmlGpmMigSampleGet(device, number, now)
            before = self._samples.get(number)
            self._samples[number] = now
            if before is None:
                return 0.0
            try:
                return _sm_share(before, now)
            finally:
                pynvml.nvmlGpmSampleFree(before)
        return None

    def close(self) -> None:
        """Free the driver's samples."""
        for sample in self._samples.values():
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples.clear()


def _sm_share(before: Any, now: Any) -> float:
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    query.numMetrics, query.sample1, query.sample2 = 1, before, now
    query.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    found = pynvml.nvmlGpmMetricsGet(query).metrics[0]
    if found.nvmlReturn != pynvml.NVML_SUCCESS or not 0 <= found.value <= 100:
        raise pynvml.NVMLError(found.nvmlReturn or pynvml.NVML_ERROR_UNKNOWN)
    return float(found.value) / 100


def _busy(device: Any) -> float | None:
    with suppress(pynvml.NVMLError):
        return min(float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100, 1.0)
    return None


def _processes(device: Any) -> tuple[GpuProcess, ...]:
    found = {}
    for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
        number = getattr(each, "gpuInstanceId", None)
        found[int(each.pid)] = GpuProcess(
            int(each.pid),
            None if number in {None, _NO_INSTANCE} else number,
            int(each.usedGpuMemory or 0),
        )
    return tuple(found[pid] for pid in sorted(found))


def _multiprocessors(device: Any) -> dict[int, int]:
    """Return the SMs of each GPU instance that has a MIG device."""
    found: dict[int, int] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        with suppress(pynvml.NVMLError):
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
            number = pynvml.nvmlDeviceGetGpuInstanceId(mig)
            attributes = pynvml.nvmlDeviceGetAttributes_v2(mig)
            found[number] = found.get(number, 0) + int(attributes.multiprocessorCount)
    return found

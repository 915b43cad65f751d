"""From a node's settings to its cores as a device."""

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_OID, uuid5

import psutil

from services.gpuagent.core import cpu_geometry
from services.gpuagent.core.device_port import MeterReading
from services.gpuagent.core.gpu_types import GpuModel
from services.gpuagent.core.permissions import Permissions
from services.gpuagent.devices.cpu import power
from services.gpuagent.devices.cpu.cores import CpuCores, max_clock_mhz
from services.gpuagent.devices.rapl import ROOT, Rapl
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit.config import Cpu
from services.kit.errors import FailedPrecondition

_CPUINFO: Final = Path("/proc/cpuinfo")


def cores_of(  # noqa: PLR0913 - what a device is made of
    name: str,
    settings: Cpu,
    folder: Path,
    counters: Callable[[str], SharedCounters],
    permissions: Permissions,
    *,
    rapl: Path = ROOT,
) -> CpuCores:
    """Return the device; nothing is read or measured before it is entered.

    Args:
        name: The node's.
        settings: Its cores.
        folder: Of the device's file.
        counters: Gives a device's ledger, by UUID.
        permissions: Whether slices may be changed.
        rapl: Folder of the kernel's power zones.

    Raises:
        FailedPrecondition: The agent may not run on these cores.
    """
    cores = chosen(settings)
    numbers = ",".join(map(str, cores))
    uuid = f"CPU-{uuid5(NAMESPACE_OID, f'cinquefoil {name} {numbers}')}"
    idle_w = power.IDLE_W * len(cores) if settings.idle_w is None else settings.idle_w
    return CpuCores(
        uuid=uuid,
        cores=cores,
        model=_model(len(cores), idle_w, settings.core_w),
        path=folder / f"{uuid}.json",
        gauge=_gauge(cores, idle_w, settings.core_w, rapl),
        busy=lambda slice_uuid: counters(uuid).busy(slice_uuid),
        permissions=permissions,
    )


def _gauge(
    cores: Sequence[int], idle_w: float, core_w: float, rapl: Path
) -> Callable[[], MeterReading]:
    """Return what reads energy: of all that runs on the machine, or as modelled of the cores."""
    found = Rapl.find(rapl)
    if found is not None:
        return lambda: MeterReading(found.energy_j(), None, "rapl", power.busy_s())
    model = power.PowerModel(cores, idle_w, core_w)
    return lambda: MeterReading(model.energy_j(), None, "model", power.busy_s(cores))


def chosen(settings: Cpu) -> tuple[int, ...]:
    """Return the cores that a node offers, by number.

    Raises:
        FailedPrecondition: The agent may not run on some of them, or on too few.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if isinstance(settings.cores, int):
        if settings.cores > len(allowed):
            raise FailedPrecondition(
                f"cpu.cores: {settings.cores} are configured, and the agent may run on "
                f"{len(allowed)}",
                reason="TOO_FEW_CORES",
            )
        return tuple(allowed[: settings.cores])
    missing = sorted(set(settings.cores) - set(allowed))
    if missing:
        raise FailedPrecondition(
            f"cpu.cores: the agent may not run on {missing}; it may on {allowed}",
            reason="TOO_FEW_CORES",
        )
    return settings.cores


def _model(cores: int, idle_w: float, core_w: float) -> GpuModel:
    memory_bytes = psutil.virtual_memory().total
    return GpuModel(
        name=cpu_geometry.name(cores),
        product_name=_product_name(),
        geometry=cpu_geometry.geometry(cores, memory_bytes),
        sm_count=cores,
        memory_bytes=memory_bytes,
        idle_power_w=idle_w,
        max_power_w=idle_w + core_w * cores,
        clocks_mhz=(max_clock_mhz(),),
    )


def _product_name() -> str:
    """Return what the processor calls itself, for example "AMD EPYC 9654"."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

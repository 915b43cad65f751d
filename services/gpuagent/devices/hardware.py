"""The node's GPUs, real or simulated, or its cores, ready to be planned with."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import pynvml

from services.gpuagent.core.device_port import Permissions
from services.gpuagent.core.gpu_types import GpuInfo
from services.gpuagent.devices import fake_nvml
from services.gpuagent.devices.cpu.cores import cores_of
from services.gpuagent.devices.device_thread import Devices, DeviceThread
from services.gpuagent.devices.nvml.errors import translated
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit import config
from services.kit.errors import FailedPrecondition
from services.kit.telemetry import logs

_RUNTIMES: Final = ("onnxruntime-gpu", "onnxruntime")
"""Distributions of the same package, of which the first one that is there is loaded."""


@dataclass(frozen=True, slots=True)
class Software:
    """Versions; "" where one is not known. Attributes: driver, cuda, onnxruntime."""

    driver: str = ""
    cuda: str = ""
    onnxruntime: str = ""


def cpu_software(_: Devices) -> Software:
    """Return the versions of a node without a GPU driver."""
    return Software(onnxruntime=_runtime())


def nvml_software(_: Devices) -> Software:
    """Return the versions; call it where NVML is called.

    Raises:
        Unavailable: The driver cannot answer now.
    """
    with translated("read the driver's version"):
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), ""
        with suppress(pynvml.NVMLError_FunctionNotFound):
            number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            cuda = f"{number // 1000}.{number % 1000 // 10}"
    return Software(driver, cuda, _runtime())


def _runtime() -> str:
    for name in _RUNTIMES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


_log = logs.get("hardware")


@asynccontextmanager
async def gpus_of(
    name: str,
    node: config.Node,
    state_dir: Path,
    counters: Callable[[str], SharedCounters],
    *,
    kept_off: Collection[str] = (),
) -> AsyncIterator[DeviceThread]:
    """Open the GPUs, or cores, of a node while the block runs, with MIG mode on where it may be.

    Args:
        name: The node's.
        node: Its settings.
        state_dir: Where simulated hardware, and a CPU, keep their state.
        counters: Gives a GPU's ledger, by UUID.
        kept_off: GPUs whose MIG mode was switched off on purpose.

    Raises:
        NotFound: A simulated GPU type without a table.
        FailedPrecondition: The agent may not run on the cores.
        Unavailable: NVML cannot be loaded.
    """
    permissions = permissions_of(name, node)
    if node.cpu is not None:
        cores = cores_of(name, node.cpu, state_dir, counters, permissions)
        async with DeviceThread(cores) as device:
            yield device
        return
    simulated = node.simulated is not None
    restore: Callable[[], None] | None = None
    if node.simulated is not None:
        library = fake_nvml.FakeNvml(name, node.simulated, state_dir=state_dir, activity=counters)
        restore = fake_nvml.install(library)
    try:
        gpus = NvmlGpus(allowed=node.gpus, permissions=permissions, simulated=simulated)
        async with DeviceThread(gpus) as device:
            if node.controlled and (simulated or node.allow_mig_mode):
                await _enable_mig(device, kept_off)
            yield device
    finally:
        if restore is not None:
            restore()


def permissions_of(name: str, node: config.Node) -> Permissions:
    """Return whether a node's agent may change it."""
    return Permissions(node.controlled, f"nodes.{name}.control")


async def _enable_mig(device: DeviceThread, kept_off: Collection[str]) -> None:
    for gpu in await device.call(lambda d: d.list()):
        if not gpu.mig_enabled and gpu.uuid not in kept_off:
            await _enable_on(device, gpu)


async def _enable_on(device: DeviceThread, gpu: GpuInfo) -> None:
    try:
        await device.call(lambda d: d.set_mig_mode(gpu.uuid, enabled=True))
    except FailedPrecondition as error:  # a GPU without MIG, or one in use: it serves as a whole
        _log.info("MIG mode stays off", gpu=gpu.uuid, reason=error.message)

"""The node's GPUs, real or simulated, or its cores, ready to be planned with."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import pynvml

from services.gpuagent.core.device_port import Permissions
from services.gpuagent.devices.cpu.cores import cores_of
from services.gpuagent.devices.device_thread import Devices, DeviceThread
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
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


def software(devices: Devices) -> Software:
    """Return the versions; call it where drivers are called.

    Raises:
        Unavailable: The driver cannot answer now.
    """
    driver = cuda = ""
    if isinstance(devices, NvmlGpus):
        with translated("read the driver's version"):
            driver = pynvml.nvmlSystemGetDriverVersion()
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
    devices: Devices
    with ExitStack() as stack:
        if node.cpu is not None:
            devices = cores_of(name, node.cpu, state_dir, counters, permissions)
        else:
            simulated = node.simulated is not None
            if node.simulated is not None:
                library = FakeNvml(name, node.simulated, state_dir=state_dir, activity=counters)
                stack.callback(install(library))
            devices = NvmlGpus(allowed=node.gpus, permissions=permissions, simulated=simulated)
        async with DeviceThread(devices) as device:
            if may_switch_mig_mode(node):
                await _enable_mig(device, kept_off)
            yield device


def permissions_of(name: str, node: config.Node) -> Permissions:
    """Return whether a node's agent may change it."""
    return Permissions(node.controlled, f"nodes.{name}.control")


def may_switch_mig_mode(node: config.Node) -> bool:
    """Return whether a node's agent may switch MIG mode."""
    return node.controlled and (node.simulated is not None or node.allow_mig_mode)


async def _enable_mig(device: DeviceThread, kept_off: Collection[str]) -> None:
    for gpu in await device.call(lambda d: d.list()):
        if gpu.mig_enabled or gpu.uuid in kept_off:
            continue
        try:
            await device.call(lambda d, uuid: d.set_mig_mode(uuid, enabled=True), gpu.uuid)
        except FailedPrecondition as error:  # without MIG, or in use: it serves as a whole
            _log.info("MIG mode stays off", gpu=gpu.uuid, reason=error.message)

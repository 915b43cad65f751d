"""The node's GPUs, real or simulated, or its cores, ready to be planned with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from services.gpuagent.core.gpu_types import GpuInfo
from services.gpuagent.core.permissions import Permissions
from services.gpuagent.devices import fake_nvml
from services.gpuagent.devices.cpu.opening import cores_of
from services.gpuagent.devices.device_thread import DeviceThread
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.kit import config
from services.kit.errors import FailedPrecondition
from services.kit.telemetry import logs

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

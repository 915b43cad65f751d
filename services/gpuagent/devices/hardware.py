"""The node's GPUs, real or simulated, or its cores, each with its ledger."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from operator import methodcaller
from typing import Final

import pynvml

from cinquefoil.gpuagent.v1.records import Software
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.amd_gpus import AmdGpus
from services.gpuagent.devices.cpu.cores import cores_of
from services.gpuagent.devices.device_thread import Devices, DeviceThread
from services.gpuagent.devices.fake_amdsmi import library as fake_amdsmi
from services.gpuagent.devices.fake_amdsmi.library import FakeAmdSmi
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.gpuagent.devices.mig_mode import kept_off
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.node_place import NodePlace
from services.gpuagent.shared_memory.shared_counters import SharedCounters, opened
from services.kit import config
from services.kit.errors import FailedPrecondition, ServiceError
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import Maker
from services.kit.telemetry import logs

_RUNTIMES: Final = ("onnxruntime-gpu", "onnxruntime")
"""Distributions of the same package, of which the first one that is there is loaded."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs, with a ledger each, and the versions of what drives them."""

    device: DeviceThread
    gpus: tuple[GpuInfo, ...]
    gpu_counters: Mapping[str, SharedCounters]
    software: Software


def software(devices: Devices) -> Software:
    """Return the versions, as far as they are known; call it where drivers are called."""
    driver = cuda = ""
    if isinstance(devices, NvmlGpus):
        with suppress(pynvml.NVMLError):
            driver = pynvml.nvmlSystemGetDriverVersion()
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
async def hardware_of(place: NodePlace) -> AsyncIterator[Hardware]:
    """Open the GPUs, or cores, of a node while the block runs, with MIG mode on where it may be.

    Raises:
        NotFound: A simulated GPU type without a table.
        FailedPrecondition: The agent may not run on the cores, or a state file is damaged.
        Unavailable: NVML cannot be loaded.
    """
    name, node, state_dir = place.name, place.settings, place.folder / "hardware"
    permissions, simulated = permissions_of(place), node.simulated is not None
    gpu_counters: dict[str, SharedCounters] = {}
    devices: Devices
    with ExitStack() as stack:

        def counters(uuid: str) -> SharedCounters:
            if uuid not in gpu_counters:
                path = place.folder / "ledgers" / f"{uuid}.ledger"
                gpu_counters[uuid] = stack.enter_context(opened(path, repaired=True))
            return gpu_counters[uuid]

        if node.cpu is not None:
            devices = cores_of(name, node.cpu, state_dir, counters, permissions)
        elif maker_of(node) == "amd":
            if node.simulated is not None:
                smi = FakeAmdSmi(name, node.simulated, state_dir=state_dir, activity=counters)
                stack.callback(fake_amdsmi.install(smi))
            devices = AmdGpus(allowed=node.gpus, permissions=permissions, simulated=simulated)
        else:
            if node.simulated is not None:
                library = FakeNvml(name, node.simulated, state_dir=state_dir, activity=counters)
                stack.callback(install(library))
            devices = NvmlGpus(allowed=node.gpus, permissions=permissions, simulated=simulated)
        async with DeviceThread(devices) as device:
            if may_switch_mig_mode(node):
                await _enable_mig(device, kept_off(place.folder / "mig_modes.json"))
            gpus = await device.call(lambda d: d.list())
            await device.call(methodcaller("keep", [gpu.uuid for gpu in gpus]))
            counters_of = {gpu.uuid: counters(gpu.uuid) for gpu in gpus}
            yield Hardware(device, gpus, counters_of, await device.call(software))


def permissions_of(place: NodePlace) -> Permissions:
    """Return whether a node's agent may change it."""
    settings = place.settings
    return Permissions(
        settings.controlled, f"nodes.{place.name}.control", clocks=bool(settings.steer_clocks)
    )


def maker_of(node: config.Node) -> Maker:
    """Return whose driver a node's GPUs have.

    Raises:
        NotFound: A simulated GPU type without a table.
        FailedPrecondition: Simulated GPUs of several makers, or of another than the setting's.
    """
    makers = {gpu_types.load(name).maker for name in node.simulated or ()}
    if node.maker is not None:
        makers.add(node.maker)
    if len(makers) > 1:
        raise FailedPrecondition("the GPUs of a node are of one maker: describe two nodes")
    return next(iter(makers), "nvidia")


def may_switch_mig_mode(node: config.Node) -> bool:
    """Return whether a node's agent may switch MIG mode."""
    allowed = node.allow_mig_mode
    return node.controlled and (node.simulated is not None if allowed is None else allowed)


async def _enable_mig(device: DeviceThread, off: Collection[str]) -> None:
    for gpu in await device.call(lambda d: d.list()):
        if gpu.mig_enabled or gpu.uuid in off:
            continue
        try:
            await device.call(methodcaller("set_mig_mode", gpu.uuid, enabled=True))
        except FailedPrecondition as error:  # without MIG, or in use: it serves as a whole
            _log.info("MIG mode stays off", gpu=gpu.uuid, reason=error.message)
        except ServiceError as error:  # one GPU's trouble leaves the others
            _log.warning("MIG mode stays off", gpu=gpu.uuid, reason=error.message)

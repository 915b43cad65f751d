"""A node's GPUs as an operator sees them: read from NVML itself, with an agent or without.

Simulated GPUs are read through the files that their agent writes, and nothing is written.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pynvml

from services.gpuagent.devices.fake_nvml.core.sensors import ActivityMeter, NoActivity
from services.gpuagent.devices.fake_nvml.library import FakeNvml, install
from services.gpuagent.devices.nvml import reading
from services.gpuagent.devices.nvml.errors import translated
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.shared_memory.shared_counters import SharedCounters
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.journal import Journal
from services.kit import config
from services.kit.errors import FailedPrecondition, NotFound
from services.kit.units import BYTES_PER_MIB


@dataclass(frozen=True, slots=True)
class SliceOccupant:
    """A segment that has processes on a slice.

    Attributes:
        slice_uuid: The slice: a MIG device, or the GPU.
        segment_id: Of the plan.
        serves: "model/variant", or "" where the agent's journal does not know it.
        pids: Its worker processes that live.
    """

    slice_uuid: str
    segment_id: str
    serves: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a GPU's sensors show.

    Attributes:
        mig: MIG mode in force and pending, 0 or 1 each; None where there is none.
        clock_mhz, max_clock_mhz: SM clock, MHz.
        power_w, power_limit_w: Power, W.
        energy_mj: Energy counter, mJ, or None before Volta.
        memory_used_mib, memory_mib: Memory, MiB, or None where the process may not know.
    """

    mig: tuple[int, int] | None
    clock_mhz: int
    max_clock_mhz: int
    power_w: float
    power_limit_w: float
    energy_mj: int | None
    memory_used_mib: int | None
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class ListedProfile:
    """A size of GPU instance.

    Attributes:
        id: Hardware id, as `nvidia-smi mig -cgi` takes it.
        name: For example "3g.20gb".
        free, total: Instances that could still be created (0 while MIG mode is off), and at most.
        memory_mib: Memory, MiB.
        sm_count: Streaming multiprocessors.
        engines: Numbers of copy, decoder, encoder, JPEG and optical-flow engines.
        p2p: Peer to peer is supported.
        starts: Allowed first memory slices.
        size: Memory slices.
    """

    id: int
    name: str
    free: int
    total: int
    memory_mib: int
    sm_count: int
    engines: tuple[int, int, int, int, int]
    p2p: bool
    starts: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class ListedInstance:
    """A GPU instance. Attributes: id, name, profile_id, start, size (in memory slices)."""

    id: int
    name: str
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ListedMigDevice:
    """What CUDA sees. Attributes: index, name, uuid, instance_id (of its GPU instance)."""

    index: int
    name: str
    uuid: str
    instance_id: int


@dataclass(frozen=True, slots=True)
class SurveyedGpu:
    """One GPU. Where it has fallen off the bus, only its index is known.

    Attributes:
        index: NVML's.
        uuid, name: From the driver; "": the GPU is lost.
        gauges: What its sensors show; None: it is lost.
        profiles: Sizes of GPU instance.
        instances: GPU instances.
        devices: MIG devices.
        tenants: Segments with processes on it.
        may_look: The process may look at MIG instances; else profiles and instances are unknown.
    """

    index: int
    uuid: str = ""
    name: str = ""
    gauges: Gauges | None = None
    profiles: tuple[ListedProfile, ...] = ()
    instances: tuple[ListedInstance, ...] = ()
    devices: tuple[ListedMigDevice, ...] = ()
    tenants: tuple[SliceOccupant, ...] = ()
    may_look: bool = True


def survey(name: str, node: config.Node) -> tuple[SurveyedGpu, ...]:
    """Return the GPUs of a node, by index; real ones must be this machine's. Blocks.

    Args:
        name: The node's.
        node: Its settings.

    Raises:
        NotFound: A simulated GPU type without a table.
        FailedPrecondition: There is no NVIDIA driver, a file of the node is damaged, or the node
            offers CPU cores.
        Unavailable: The driver cannot answer now.
    """
    if node.cpu is not None:
        raise FailedPrecondition(
            f"{name} offers CPU cores, of which NVML knows nothing; `cinquefoil status` shows them"
        )
    folder = node.state_dir.absolute() / name
    with _opened(name, node, folder), translated("read the GPUs"):
        journal = Store(folder / "journal.json", Journal).load() or Journal(())
        serves = {each.segment_id: f"{each.model}/{each.variant}" for each in journal.segments}
        indices = range(pynvml.nvmlDeviceGetCount())
        return tuple(_surveyed(index, folder, serves) for index in indices)


@contextmanager
def _opened(name: str, node: config.Node, folder: Path) -> Iterator[None]:
    """Start NVML, real or simulated, while the block runs."""
    with ExitStack() as stack:

        def work_on(uuid: str) -> ActivityMeter:
            with suppress(NotFound):
                return stack.enter_context(_watched(folder, uuid))
            return NoActivity()

        if node.simulated is not None:
            library = FakeNvml(
                name,
                node.simulated,
                state_dir=folder / "hardware",
                activity=work_on,
                read_only=True,
            )
            stack.callback(install(library))
        stack.enter_context(NvmlGpus())
        yield


def _watched(folder: Path, uuid: str) -> closing[SharedCounters]:
    return closing(SharedCounters(folder / "ledgers" / f"{uuid}.ledger", read_only=True))


def _surveyed(index: int, folder: Path, serves: Mapping[str, str]) -> SurveyedGpu:
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu = SurveyedGpu(
            index=index,
            uuid=pynvml.nvmlDeviceGetUUID(device),
            name=pynvml.nvmlDeviceGetName(device),
            gauges=_gauges(device),
            devices=tuple(mig_devices(device)),
        )
        gpu = replace(gpu, tenants=tuple(_tenants(folder, gpu.uuid, serves)))
    except pynvml.NVMLError_GpuIsLost:
        return SurveyedGpu(index)
    try:
        return replace(gpu, profiles=profiles(device), instances=tuple(gpu_instances(device)))
    except pynvml.NVMLError_NoPermission:
        return replace(gpu, may_look=False)


def _gauges(device: Any) -> Gauges:
    sm, memory = pynvml.NVML_CLOCK_SM, _or_none(pynvml.nvmlDeviceGetMemoryInfo, device)
    return Gauges(
        mig=_or_none(pynvml.nvmlDeviceGetMigMode, device),
        clock_mhz=pynvml.nvmlDeviceGetClockInfo(device, sm),
        max_clock_mhz=pynvml.nvmlDeviceGetMaxClockInfo(device, sm),
        power_w=pynvml.nvmlDeviceGetPowerUsage(device) / 1e3,
        power_limit_w=pynvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1e3,
        energy_mj=_or_none(pynvml.nvmlDeviceGetTotalEnergyConsumption, device),
        memory_used_mib=memory and memory.used // BYTES_PER_MIB,
        memory_mib=memory and memory.total // BYTES_PER_MIB,
    )


def _or_none(ask: Callable[[Any], Any], device: Any) -> Any:
    try:
        return ask(device)
    # Containers with MIG slices may be refused the whole GPU's memory (container-toolkit#842).
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
        return None


def _tenants(folder: Path, uuid: str, serves: Mapping[str, str]) -> Iterator[SliceOccupant]:
    """Yield the segments whose processes hold slots of the GPU's ledger, in order of slot."""
    pids: dict[tuple[str, str], list[int]] = {}
    with suppress(NotFound), _watched(folder, uuid) as counters:
        for slot in counters.slots():
            if slot.pid and psutil.pid_exists(slot.pid):
                pids.setdefault((slot.slice_uuid, slot.segment_id), []).append(slot.pid)
    for (slice_uuid, segment_id), found in pids.items():
        yield SliceOccupant(slice_uuid, segment_id, serves.get(segment_id, ""), tuple(found))


# ---- what NVML lists, as `nvidia-smi` does; these let its errors through -------------------------


def profiles(device: Any) -> tuple[ListedProfile, ...]:
    """Return the profiles of a GPU, smallest first (privileged)."""
    return tuple(sorted(_profiles(device), key=lambda p: (p.sm_count, p.memory_mib, p.name)))


def _profiles(device: Any) -> Iterator[ListedProfile]:
    remaining = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
    enabled = reading.mig_mode(device)[0]
    for info in reading.profile_infos(device):
        starts, size = reading.possible_placements(device, info.id)
        engines = ("copyEngine", "decoder", "encoder", "jpeg", "ofa")
        copy, decoder, encoder, jpeg, ofa = (getattr(info, f"{name}Count") for name in engines)
        yield ListedProfile(
            id=info.id,
            name=_short(info.name),
            free=remaining(device, info.id) if enabled else 0,
            total=info.instanceCount,
            memory_mib=info.memorySizeMB,
            sm_count=info.multiprocessorCount,
            engines=(copy, decoder, encoder, jpeg, ofa),
            p2p=bool(info.isP2pSupported),
            starts=starts,
            size=size,
        )


def gpu_instances(device: Any) -> Iterator[ListedInstance]:
    """Yield the GPU instances, by profile and id; none while MIG mode is off (privileged)."""
    if not reading.mig_mode(device)[0]:
        return
    for profile in reading.profile_infos(device):
        found = reading.gpu_instances(device, profile.id, profile.instanceCount)
        for info in map(pynvml.nvmlGpuInstanceGetInfo, found):
            where = info.placement
            yield ListedInstance(info.id, _short(profile.name), profile.id, where.start, where.size)


def mig_devices(device: Any) -> Iterator[ListedMigDevice]:
    """Yield the MIG devices, by index (unprivileged)."""
    for index, handle in reading.mig_devices(device):
        _, _, name = pynvml.nvmlDeviceGetName(handle).rpartition(" MIG ")
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        yield ListedMigDevice(index, name, uuid, pynvml.nvmlDeviceGetGpuInstanceId(handle))


def _short(name: str) -> str:
    return name.removeprefix("MIG ")

"""All that NVML lists of the GPUs of a node, as `nvidia-smi` does: also what is not ours.

Functions take an nvmlDevice_t and let NVML's errors through; `nvml.errors` turns them into ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from services.gpuagent.devices.nvml import reading


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

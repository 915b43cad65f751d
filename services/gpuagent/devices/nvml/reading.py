"""What NVML reports of one GPU: its model, its clocks, its MIG instances. Changes nothing.

Functions take an nvmlDevice_t and let NVML's errors through; `nvml.errors` turns them into ours.
"""

import re
from collections.abc import Callable, Iterator
from ctypes import byref, c_uint
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pynvml

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.gpuagent.core import gpu_types
from services.gpuagent.core.gpu_types import GpuModel, GpuTable, whole_geometry
from services.kit.mig import Geometry
from services.kit.units import BYTES_PER_MIB

_CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores per SM by compute capability, where it is not 128 (CUDA programming guide)."""

_ASSUMED_IDLE_SHARE = 0.1
"""Idle power over the power limit, for types without a table."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance as NVML shows it.

    Attributes:
        placement: Where it lies.
        handle: Its nvmlGpuInstance_t; stale once it is destroyed.
        devices: UUIDs of the MIG devices on it, one per compute instance.
        complete: One compute instance takes all of it: a slice that can serve.
    """

    placement: Placement
    handle: Any
    devices: tuple[str, ...]
    complete: bool


def present() -> Iterator[tuple[str, Any]]:
    """Yield UUID and nvmlDevice_t of each GPU that has not fallen off the bus, by index."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            yield pynvml.nvmlDeviceGetUUID(handle), handle
        except pynvml.NVMLError_GpuIsLost:
            continue


def by_uuid(gpu_uuid: str) -> Any:
    """Return the nvmlDevice_t of a GPU, also while another one is lost.

    nvml.h of nvmlDeviceGetHandleByUUID: NVML_ERROR_GPU_IS_LOST "if any GPU has fallen off the bus".
    """
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid.encode())
    except pynvml.NVMLError_GpuIsLost:
        handle = dict(present()).get(gpu_uuid)
        if handle is None:
            raise
        return handle


def mig_mode(device: Any) -> tuple[bool, bool]:
    """Return the MIG mode in force and the one pending; both False where there is none."""
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(device)
    except pynvml.NVMLError_NotSupported:
        return False, False
    return bool(current), bool(pending)


def model(device: Any) -> GpuModel:
    """Return what the GPU is, and what it can be cut into in its present MIG mode."""
    product_name = pynvml.nvmlDeviceGetName(device)
    table = gpu_types.by_product_name(product_name)
    max_power_w = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(device) / 1000
    sm_count = _sm_count(device)
    memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(device).total
    kinds = tuple(_kinds(device))
    if mig_mode(device)[0]:
        geometry = _geometry(device, kinds)
    else:
        known = table.geometry.kinds if table else ()
        slices = max((kind.compute_slices for kind in kinds or known), default=1)
        geometry = whole_geometry(
            compute_slices=slices, sm_count=sm_count, memory_bytes=memory_bytes
        )
    return GpuModel(
        name=table.name if table else _slug(product_name),
        product_name=product_name,
        geometry=geometry,
        sm_count=sm_count,
        memory_bytes=memory_bytes,
        idle_power_w=_idle_power_w(table, max_power_w),
        max_power_w=max_power_w,
        clocks_mhz=_clocks_mhz(device),
    )


def _idle_power_w(table: GpuTable | None, max_power_w: float) -> float:
    """Return the type's, in proportion: its PCIe boards have a lower limit and draw less."""
    if table is None:
        return _ASSUMED_IDLE_SHARE * max_power_w
    return table.idle_power_w * max_power_w / table.max_power_w


def instances(device: Any, geometry: Geometry) -> tuple[Instance, ...]:
    """Return the GPU instances of the kinds in `geometry`, in order of start."""
    devices: dict[int, list[Any]] = {}
    for _, mig_device in mig_devices(device):
        number = pynvml.nvmlDeviceGetGpuInstanceId(mig_device)
        devices.setdefault(number, []).append(mig_device)
    found = []
    for kind in geometry.kinds:
        for handle in gpu_instances(device, kind.gpu_instance_profile_id, kind.max_count):
            info = pynvml.nvmlGpuInstanceGetInfo(handle)
            on_it = devices.get(info.id, [])
            found.append(
                Instance(
                    placement=Placement(kind.name, info.placement.start),
                    handle=handle,
                    devices=tuple(pynvml.nvmlDeviceGetUUID(entry) for entry in on_it),
                    complete=len(on_it) == 1 and _takes_all(on_it[0]),
                )
            )
    return tuple(sorted(found, key=lambda instance: instance.placement.start))


def profile_infos(device: Any) -> Iterator[Any]:
    """Yield the nvmlGpuInstanceProfileInfo_v2_t of each size of GPU instance there is."""
    for profile in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, profile)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue  # not on this GPU, or newer than this driver


def possible_placements(device: Any, profile_id: int) -> tuple[tuple[int, ...], int]:
    """Return the starts, in order, and the size of a profile, in memory slices (privileged)."""
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile_id, array, byref(count))
    return tuple(sorted(entry.start for entry in array)), array[0].size


def gpu_instances(device: Any, profile_id: int, most: int) -> Iterator[Any]:
    """Yield the nvmlGpuInstance_t of a profile, of which there are `most` at most (privileged)."""
    fill = partial(pynvml.nvmlDeviceGetGpuInstances, device, profile_id)
    return _listed(pynvml.c_nvmlGpuInstance_t, most, fill)


def mig_devices(device: Any) -> Iterator[tuple[int, Any]]:
    """Yield index and nvmlDevice_t of each MIG device."""
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            yield index, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue  # indices may have holes


def compute_instances(instance: Any) -> Iterator[Any]:
    """Yield the nvmlComputeInstance_t of every compute instance on a GPU instance."""
    for info in _compute_profiles(instance):
        fill = partial(pynvml.nvmlGpuInstanceGetComputeInstances, instance, info.id)
        yield from _listed(pynvml.c_nvmlComputeInstance_t, info.instanceCount, fill)


def full_compute_profile_id(instance: Any, compute_slices: int) -> int:
    """Return the id of the compute-instance profile that takes a whole GPU instance.

    Args:
        instance: An nvmlGpuInstance_t.
        compute_slices: Compute slices of the GPU instance.
    """
    for info in _compute_profiles(instance):
        if info.sliceCount == compute_slices:
            return int(info.id)
    raise pynvml.NVMLError_NotFound


# ---- helpers -----------------------------------------------------------------------------------


def _sm_count(device: Any) -> int:
    """Return the SMs of the whole GPU: NVML counts CUDA cores, and SMs only of its slices."""
    capability = pynvml.nvmlDeviceGetCudaComputeCapability(device)
    cores: int = pynvml.nvmlDeviceGetNumGpuCores(device)
    return cores // _CORES_PER_SM.get((capability[0], capability[1]), 128)


def _clocks_mhz(device: Any) -> tuple[int, ...]:
    """Return the SM clocks at the highest memory clock, highest first."""
    try:
        memory_mhz = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(device))
        clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(device, memory_mhz)
    except pynvml.NVMLError_NotSupported:
        clocks = [pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM)]
    return tuple(sorted(clocks, reverse=True))


def _kinds(device: Any) -> Iterator[SliceProfile]:
    """Yield the slice kinds the GPU could have and that we offer, without their starts."""
    for info in profile_infos(device):
        name = info.name.removeprefix("MIG ")
        if gpu_types.OFFERED.fullmatch(name):
            yield SliceProfile(
                name=name,
                compute_slices=info.sliceCount,
                memory_slices=0,
                starts=(),
                max_count=info.instanceCount,
                sm_count=info.multiprocessorCount,
                memory_bytes=info.memorySizeMB * BYTES_PER_MIB,
                gpu_instance_profile_id=info.id,
            )


def _geometry(device: Any, kinds: tuple[SliceProfile, ...]) -> Geometry:
    """Return the geometry: the kinds with their placements (which need privilege to read)."""
    placed = []
    for kind in kinds:
        starts, size = possible_placements(device, kind.gpu_instance_profile_id)
        placed.append(replace(kind, memory_slices=size, starts=starts))
    last = max(start + kind.memory_slices for kind in placed for start in kind.starts)
    return Geometry(memory_slices=last, kinds=tuple(placed))


def _takes_all(mig_device: Any) -> bool:
    found = pynvml.nvmlDeviceGetAttributes_v2(mig_device)
    return bool(found.computeInstanceSliceCount == found.gpuInstanceSliceCount)


def _compute_profiles(instance: Any) -> Iterator[Any]:
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for profile in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, shared)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue


def _listed(ctype: Any, most: int, fill: Callable[[Any, Any], object]) -> Iterator[Any]:
    """Yield the entries that `fill` writes to an array with room for `most`."""
    array, count = (ctype * most)(), c_uint(most)
    fill(array, byref(count))
    yield from array[: count.value]


def _slug(product_name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", product_name.lower()).strip("-")

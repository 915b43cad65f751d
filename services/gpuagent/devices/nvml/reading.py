"""Reads one GPU through NVML: its model, its clocks, its MIG instances. Changes nothing.

What a `Board` does not say has another source, or is left out. Functions that take an nvmlDevice_t
let NVML's errors through; `nvml.errors` turns them into ours.
"""

from collections.abc import Callable, Iterator
from ctypes import byref, c_uint
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import psutil
import pynvml

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.gpuagent.devices.nvml.errors import query_of, spoken
from services.gpuagent.devices.nvml.queries import Board
from services.kit.hardware import gpu_types
from services.kit.hardware.boards import DriverReading, identify, table_of
from services.kit.hardware.gpu_types import GpuModel, whole_geometry
from services.kit.mig import Geometry
from services.kit.units import BYTES_PER_MIB

_CORES_PER_SM = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores per SM by compute capability, where it is not 128 (CUDA programming guide)."""

_UNNAMED: Final = "NVIDIA GPU"
"""Product name of a board whose driver does not say it."""


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


def mig_mode(device: Any) -> tuple[bool, bool]:
    """Return the MIG mode in force and the one pending; both False where there is none."""
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(device)
    except pynvml.NVMLError_NotSupported:
        return False, False
    return bool(current), bool(pending)


def latest_mig_mode(board: Board) -> tuple[bool, bool]:
    """Return the MIG mode in force and the one pending, as the driver last said."""
    current, pending = board.latest(pynvml.nvmlDeviceGetMigMode) or (0, 0)
    return bool(current), bool(pending)


def model(board: Board, *, mig_enabled: bool) -> GpuModel:
    """Return what the GPU is, and what it can be cut into in a MIG mode.

    Raises:
        NVMLError: MIG mode is on, and the driver does not say what it can be cut into.
    """
    product_name = board.fixed(pynvml.nvmlDeviceGetName) or _UNNAMED
    memory_bytes = _memory_bytes(board, product_name)
    clocks_mhz = _clocks_mhz(board)
    capability = board.fixed(pynvml.nvmlDeviceGetCudaComputeCapability) or (0, 0)
    found = identify(
        DriverReading(
            product_name=product_name,
            memory_bytes=memory_bytes,
            compute_capability=(capability[0], capability[1]),
            sm_count=_sm_count(board, (capability[0], capability[1])),
            max_clock_mhz=clocks_mhz[0] or None,
            limit_w=_limit_w(board),
            memory_gb_per_s=_memory_gb_per_s(board),
        )
    )
    if mig_enabled:
        geometry = _geometry(board.handle, tuple(_kinds(board.handle)))
    else:
        geometry = whole_geometry(
            compute_slices=_compute_slices(board, product_name, memory_bytes),
            sm_count=found.sm_count,
            memory_bytes=memory_bytes,
        )
    return GpuModel(
        name=found.name,
        product_name=product_name,
        geometry=geometry,
        sm_count=found.sm_count,
        memory_bytes=memory_bytes,
        idle_power_w=found.idle_power_w,
        context_power_w=found.context_power_w,
        max_power_w=found.max_power_w,
        clocks_mhz=clocks_mhz,
        performance=found.performance,
    )


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


def _memory_bytes(board: Board, product_name: str) -> int:
    """Return the GPU's memory; the machine's where the driver has no figure, as both share it.

    A board that is known has no more than its table says.
    """
    found = board.fixed(pynvml.nvmlDeviceGetMemoryInfo)
    if found is not None:
        return int(found.total)
    memory_bytes = int(psutil.virtual_memory().total)
    table = table_of(product_name, memory_bytes)
    return min(memory_bytes, table.memory_bytes) if table else memory_bytes


def _limit_w(board: Board) -> float | None:
    """Return the default power limit, else the one in force; None: the driver has neither."""
    default_mw = board.fixed(pynvml.nvmlDeviceGetPowerManagementDefaultLimit)
    limit_mw = default_mw or board.fixed(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    return limit_mw / 1000 if limit_mw else None


def _memory_gb_per_s(board: Board) -> float | None:
    """Return the memory bandwidth: two transfers per clock; None: NVML does not say."""
    bits = board.fixed(pynvml.nvmlDeviceGetMemoryBusWidth)
    clock_mhz = board.fixed(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM)
    return 2 * clock_mhz * 1e6 * bits / 8 / 1e9 if bits and clock_mhz else None


def _sm_count(board: Board, capability: tuple[int, int]) -> int | None:
    """Return the SMs of the whole GPU: NVML counts CUDA cores, and SMs only of its slices."""
    cores = board.fixed(pynvml.nvmlDeviceGetNumGpuCores)
    return cores // _CORES_PER_SM.get(capability, 128) if cores else None


def _clocks_mhz(board: Board) -> tuple[int, ...]:
    """Return the SM clocks at the highest memory clock, highest first; (0,): NVML has none."""
    memory_mhz = board.fixed(pynvml.nvmlDeviceGetSupportedMemoryClocks)
    listed = memory_mhz and board.fixed(
        pynvml.nvmlDeviceGetSupportedGraphicsClocks, max(memory_mhz)
    )
    if not listed:
        listed = [board.fixed(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)]
    return tuple(sorted((clock_mhz or 0 for clock_mhz in listed), reverse=True))


def _compute_slices(board: Board, product_name: str, memory_bytes: int) -> int:
    """Return the compute slices that a board without MIG mode would have, else the table's."""
    try:
        kinds = tuple(_kinds(board.handle))
    except pynvml.NVMLError_GpuIsLost:
        raise
    except pynvml.NVMLError as error:
        board.refusals.note(query_of(error), spoken(error))
        kinds = ()
    table = table_of(product_name, memory_bytes)
    known = table.geometry.kinds if table else ()
    return max((kind.compute_slices for kind in kinds or known), default=1)


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
    if not kinds:  # it is in MIG mode: this says why it has no sizes
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
        raise pynvml.NVMLError_NotSupported
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

"""Rules of MIG: pure functions from one state of a GPU to the next.

Codes follow nvml.h; geometry follows the GPU's table.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cinquefoil.gpuagent.v1.records import Placement, SliceProfile
from services.gpuagent.devices.fake_nvml.core.gpu_state import (
    ComputeInstance,
    GpuInstance,
    GpuState,
)
from services.gpuagent.devices.fake_nvml.core.return_codes import Code, Fault
from services.kit.hardware.gpu_types import GpuTable
from services.kit.mig import Geometry

COMPUTE_SLICES = (1, 2, 3, 4, 7)
"""Compute slices of NVML_COMPUTE_INSTANCE_PROFILE_{1,2,3,4,7}_SLICE, whose enums are 0..4.
`nvidia-smi mig -lcip` prints the same numbers as hardware ids."""


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """A size of compute instance within one GPU instance.

    Attributes:
        id: Hardware id.
        name: For example "1c.3g.20gb", or "3g.20gb" for all of it.
        slices: Compute slices.
        max_count: Most of them in the GPU instance.
        sm_count: Streaming multiprocessors.
    """

    id: int
    name: str
    slices: int
    max_count: int
    sm_count: int


# ---- GPU instances -----------------------------------------------------------------------------


def kind_by_id(table: GpuTable, profile_id: int) -> SliceProfile:
    """Return the slice kind with a hardware id.

    Raises:
        Fault: NOT_SUPPORTED where the GPU has no MIG, INVALID_ARGUMENT where it has none with it.
    """
    if not table.mig_capable:
        raise Fault(Code.NOT_SUPPORTED)
    for kind in table.geometry.kinds:
        if kind.gpu_instance_profile_id == profile_id:
            return kind
    raise Fault(Code.INVALID_ARGUMENT)


def remaining_capacity(table: GpuTable, state: GpuState, kind: SliceProfile) -> int:
    """Return how many more instances of a kind fit."""
    taken = [instance.placement for instance in state.instances]
    count = 0
    for start in kind.starts:
        placement = Placement(kind.name, start)
        if _fits(table.geometry, taken, placement):
            taken.append(placement)
            count += 1
    return count


def create_instance(
    table: GpuTable, state: GpuState, kind: SliceProfile, start: int, serial: str
) -> tuple[GpuState, GpuInstance]:
    """Create a GPU instance.

    Args:
        table: The GPU's type.
        state: The GPU's state.
        kind: Size.
        start: First memory slice.
        serial: A word never used before.

    Raises:
        Fault: INVALID_ARGUMENT where `start` is not one of the kind's; INSUFFICIENT_RESOURCES
            where a memory slice is taken or the GPU has as many as it may.
    """
    if start not in kind.starts:
        raise Fault(Code.INVALID_ARGUMENT)
    taken = [instance.placement for instance in state.instances]
    if not _fits(table.geometry, taken, Placement(kind.name, start)):
        raise Fault(Code.INSUFFICIENT_RESOURCES)
    first = 0 if kind.gpu_instance_profile_id == 0 else 1  # the whole GPU is instance 0
    used = {instance.id for instance in state.instances}
    instance = GpuInstance(_unused(used, first), serial, Placement(kind.name, start))
    return _with(state, instance), instance


def destroy_instance(state: GpuState, instance: GpuInstance) -> GpuState:
    """Destroy a GPU instance.

    Raises:
        Fault: IN_USE while it has compute instances.
    """
    if instance.compute:
        raise Fault(Code.IN_USE)
    rest = tuple(entry for entry in state.instances if entry.serial != instance.serial)
    return replace(state, instances=rest)


# ---- compute instances -------------------------------------------------------------------------


def compute_profile(kind: SliceProfile, profile_id: int) -> ComputeProfile:
    """Return one size of compute instance that a GPU instance of a kind can have.

    Raises:
        Fault: INVALID_ARGUMENT for a number no GPU has, NOT_SUPPORTED for one this kind has not.
    """
    if not 0 <= profile_id < len(COMPUTE_SLICES):
        raise Fault(Code.INVALID_ARGUMENT)
    slices = COMPUTE_SLICES[profile_id]
    if slices > kind.compute_slices:
        raise Fault(Code.NOT_SUPPORTED)
    return ComputeProfile(
        id=profile_id,
        name=kind.name if slices == kind.compute_slices else f"{slices}c.{kind.name}",
        slices=slices,
        max_count=kind.compute_slices // slices,
        sm_count=kind.sm_count * slices // kind.compute_slices,
    )


def create_compute(
    kind: SliceProfile, state: GpuState, instance: GpuInstance, profile: ComputeProfile, uuid: str
) -> tuple[GpuState, ComputeInstance]:
    """Create a compute instance.

    Args:
        kind: The GPU instance's size.
        state: The GPU's state.
        instance: The GPU instance.
        profile: Size of the compute instance.
        uuid: UUID of the MIG device, never used before.

    Raises:
        Fault: INSUFFICIENT_RESOURCES where its slices are taken.
    """
    taken = {i for entry in instance.compute for i in range(entry.start, entry.start + entry.size)}
    runs = (
        start
        for start in range(kind.compute_slices - profile.slices + 1)
        if taken.isdisjoint(range(start, start + profile.slices))
    )
    start = next(runs, None)
    if start is None:
        raise Fault(Code.INSUFFICIENT_RESOURCES)
    number = _unused({entry.id for entry in instance.compute}, 0)
    compute = ComputeInstance(number, profile.id, start, profile.slices, uuid)
    grown = tuple(sorted((*instance.compute, compute), key=lambda entry: entry.id))
    return _with(state, replace(instance, compute=grown)), compute


def destroy_compute(
    state: GpuState, instance: GpuInstance, compute: ComputeInstance, *, busy: bool
) -> GpuState:
    """Destroy a compute instance.

    Raises:
        Fault: IN_USE while a process runs on it.
    """
    if busy:
        raise Fault(Code.IN_USE)
    rest = tuple(entry for entry in instance.compute if entry != compute)
    return _with(state, replace(instance, compute=rest))


# ---- helpers -----------------------------------------------------------------------------------


def _fits(geometry: Geometry, taken: Iterable[Placement], placement: Placement) -> bool:
    return not geometry.problem((*taken, placement))


def _unused(used: set[int], first: int) -> int:
    number = first
    while number in used:
        number += 1
    return number


def _with(state: GpuState, instance: GpuInstance) -> GpuState:
    others = (entry for entry in state.instances if entry.serial != instance.serial)
    return replace(state, instances=tuple(sorted((*others, instance), key=lambda entry: entry.id)))

"""A GPU, or another device that is cut into slices, as read back from the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from services.gpuagent.core.gpu_types import GpuModel
from services.kit.mig import Placement


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as read back from the hardware.

    Attributes:
        uuid: Its identity.
        index: Its index now; no identity.
        model: What it is; its geometry is what the GPU can be cut into in its present MIG mode.
        mig_enabled: MIG mode is in force.
        mig_pending: MIG mode that was requested; it comes with the next reset.
        slices: Slices that exist, with their UUIDs, in order of start.
        clock_mhz: SM clock now, MHz.
        leftovers: GPU instances without compute instance, as a crash leaves them.
        divided: GPU instances that another program divided; never touched.
        cores: Numbers of the CPU cores that its memory slices stand for; (): it is a GPU.
    """

    uuid: str
    index: int
    model: GpuModel
    mig_enabled: bool
    slices: tuple[tuple[Placement, str], ...]
    clock_mhz: int
    mig_pending: bool = False
    leftovers: tuple[Placement, ...] = ()
    divided: tuple[Placement, ...] = ()
    cores: tuple[int, ...] = ()

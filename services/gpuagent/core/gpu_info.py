"""GPUs and slices as the agent reads them from the hardware."""

from dataclasses import dataclass

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.hardware.gpu_types import GpuModel


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


@dataclass(frozen=True, slots=True)
class SliceReading:
    """A slice as read now.

    Attributes:
        placement: Where it lies.
        uuid: Its MIG device's, or the GPU's where it is the whole of that.
        instance_id: Number of its GPU instance; None: it is none.
        memory_bytes: Its memory.
        used_bytes: Memory in use; None: not known.
    """

    placement: Placement
    uuid: str
    instance_id: int | None
    memory_bytes: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU and its slices as read now. Attributes: gpu, slices."""

    gpu: GpuInfo
    slices: tuple[SliceReading, ...]

"""The port to a node's devices, NVIDIA's GPUs or the cores of this machine, and their energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, Self

from services.gpuagent.core.gpu_types import GpuInfo
from services.kit.mig import Placement

Method = Literal["counter", "integrated", "rapl", "model"]

NO_METER: Final = "NO_METER"
"""Reason of the error of a device that reports neither energy nor power, and never will."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Energy and power of a whole device.

    Attributes:
        energy_j: Energy since the driver was loaded ("counter", "model") or since the first
            reading ("integrated", "rapl"), J. It may restart with the driver or the agent.
        power_w: Power now, W. None: the device reports energy only.
        method: "counter": the GPU counts; "integrated": from power samples; "rapl": the CPU
            counts; "model": not measured.
        busy_core_s: CPU only: how long the cores whose energy this is were busy since the machine
            started, with whatever, summed, s.
    """

    energy_j: float
    power_w: float | None
    method: Method
    busy_core_s: float | None = None


class Meter(Protocol):
    """What counts energy."""

    def energy_j(self) -> float:
        """Return the energy since some fixed moment, J; it never falls.

        Raises:
            Unavailable: It cannot be read now.
        """
        ...


IN_USE: Final = "NVML_IN_USE"
"""Reason of the error that says: a process still uses it, which may be over in a moment."""


class Devices(Protocol):
    """The devices of one node, by UUID; `NvmlGpus` says what each method means and raises.

    A context manager: drivers are open inside the block. Calls block; make them from one thread.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def reopen(self) -> None:
        """Reopen the driver; a device that came back is seen only then."""
        ...

    def list(self) -> tuple[GpuInfo, ...]:
        """Return the devices that are there, as read back."""
        ...

    def present(self) -> frozenset[str]:
        """Return the UUIDs of the devices that answer."""
        ...

    def create_slice(self, gpu_uuid: str, placement: Placement) -> str:
        """Make sure that a slice exists; return its UUID, read back."""
        ...

    def destroy_slice(self, gpu_uuid: str, placement: Placement) -> None:
        """Make sure that a slice does not exist."""
        ...

    def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> None:
        """Make sure that the device can be cut, or not."""
        ...

    def meter(self, gpu_uuid: str) -> MeterReading:
        """Return energy and power of a whole device."""
        ...

    def lock_clock(self, gpu_uuid: str, clock_mhz: int) -> None:
        """Hold the clock."""
        ...

    def reset_clock(self, gpu_uuid: str) -> None:
        """Let go of the clock."""
        ...
